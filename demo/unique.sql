-- The constraint of the consumer "Unique".

ALTER TABLE payment ADD UNIQUE (message_id);
