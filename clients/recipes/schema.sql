-- What the recipes pay from, and errors that the server makes on purpose.
CREATE EXTENSION idempotency;
CREATE TABLE account (id text PRIMARY KEY, balance int NOT NULL);
-- no key: an effect that came twice can be counted
CREATE TABLE payment (key text NOT NULL, account text NOT NULL, amount int NOT NULL);

-- The next "times" payments from this account fail.  A sequence counts them, as a
-- rollback does not undo what a sequence gave.
CREATE TABLE trouble (account text PRIMARY KEY, sqlstate text NOT NULL, times int NOT NULL);
CREATE SEQUENCE tries;

CREATE FUNCTION make_trouble() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	planned trouble;
BEGIN
	SELECT * INTO planned FROM trouble WHERE account = NEW.account;
	IF NOT FOUND OR nextval('tries') > planned.times THEN
		RETURN NEW;
	END IF;
	IF planned.sqlstate = '57P01' THEN
		PERFORM pg_terminate_backend(pg_backend_pid());
	END IF;
	RAISE EXCEPTION 'trouble' USING ERRCODE = planned.sqlstate;
END
$$;
CREATE TRIGGER make_trouble BEFORE INSERT ON payment FOR EACH ROW EXECUTE FUNCTION make_trouble();
