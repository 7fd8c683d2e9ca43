#!lua flags=allow-oom
-- KEYS: the ledger's epoch, who may write the views; ARGV: a mark of who wants to, and '1' if the ledger
-- lies in this Redis. Returns whether it may. In a Redis that has lost its ledger nothing is written: it must
-- not look as if something were there.
if ARGV[2] == '1' and redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
return 1
