#!lua name=raw
-- The same work with nothing around it: a hash a task, a list, a set of alarms and a stream of
-- events. No counts, no keys, no letters, no caps; arguments are flat text.

local function insert(_, args)
  local now, payload = args[1], args[2]
  for at = 3, #args do
    local id = args[at]
    redis.call('HSET', 'raw:' .. id, 'state', 'queued', 'type', 'noop', 'queue', 'noop', 'profile',
      'console', 'created_at', now, 'queued_at', now, 'fence', 0, 'events', 1)
    redis.call('SET', 'raw:' .. id .. ':payload', payload)
    redis.call('RPUSH', 'raw-queue', id)
    redis.call('XADD', 'raw-events', '*', 't', id, 'n', 1, 'y', 'task.created', 'a', now, 'd', '')
  end
end

local function claim(_, args)
  local now, until_, limit, data = args[1], args[2], args[3], args[4]
  local claimed = {}
  for _, id in ipairs(redis.call('LPOP', 'raw-queue', limit) or {}) do
    local key = 'raw:' .. id
    local fence = tonumber(redis.call('HGET', key, 'fence')) + 1
    redis.call('HSET', key, 'state', 'running', 'fence', fence, 'events', 2, 'worker', 'builtin',
      'started_at', now, 'lease_until', until_, 'due_at', until_)
    redis.call('ZADD', 'raw-alarms', until_, id)
    redis.call('XADD', 'raw-events', '*', 't', id, 'n', 2, 'y', 'task.claimed', 'a', now, 'd', data)
    claimed[#claimed + 1] = id
    claimed[#claimed + 1] = fence
    claimed[#claimed + 1] = redis.call('GET', key .. ':payload')
  end
  return claimed
end

local function settle(_, args)
  local now, due_at, settled = args[1], args[2], 0
  for at = 3, #args, 2 do
    local id, key = args[at], 'raw:' .. args[at]
    local had = redis.call('HMGET', key, 'state', 'fence')
    if had[1] == 'running' and had[2] == args[at + 1] then
      redis.call('HSET', key, 'state', 'succeeded', 'events', 3, 'result', 'null',
        'finished_at', now, 'due_at', due_at)
      redis.call('ZADD', 'raw-alarms', due_at, id)
      redis.call('XADD', 'raw-events', '*', 't', id, 'n', 3, 'y', 'task.succeeded', 'a', now, 'd', '')
      settled = settled + 1
    end
  end
  return settled
end

redis.register_function('raw_insert', insert)
redis.register_function('raw_claim', claim)
redis.register_function('raw_settle', settle)
