-- What the shop has for the consumer "Unique".

ALTER TABLE payment ADD UNIQUE (message_id);
