-- Every write of a document throws out those past their time: found here, not by a look at all.
CREATE INDEX IF NOT EXISTS document_expiry ON document (expires_at) WHERE expires_at IS NOT NULL;
