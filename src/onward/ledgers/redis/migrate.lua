-- To layout 4: from layout 3, in which was not counted what occupies, and from layout 2, in which tasks
-- stood under names that others write as well (task:{id}, tasks:pending:…, dlq:…). One call is one step
-- of at most ARGV[1] tasks and leaves in onward:migrating how far it came, so that a server that is killed
-- in between, or two at once, lose and repeat nothing. Returns the stage that is next, the tasks done,
-- and how many there are.
--
-- From layout 2, first all tasks in the order of their birth: renamed, counted, and those that are queued
-- sorted by place, because an old list may hold the tasks of two queues. Then each queue from what was
-- sorted. From both, then what runs: counted by type and queue. No task had a partition.

local P, batch = KEYS[1], tonumber(ARGV[1])
local AT, SORTING = P .. 'onward:migrating', P .. 'onward:sorting'
local call = redis.call
local OLD = { [0] = ':high', [1] = '', [2] = ':low' }

local function old_list(queue, priority, lane)
  local name = P .. 'tasks:pending:' .. lane
  if queue ~= 'summarize' then name = name .. ':' .. queue end
  return name .. (OLD[tonumber(priority)] or '')
end

local function rename(from, to, kind)
  if call('TYPE', from).ok == kind and call('EXISTS', to) == 0 then call('RENAME', from, to) end
end

local function count(name) call('HINCRBY', P .. 'onward:counts', name, 1) end

-- Where it stands. Old names are left by pcall: another program may have put something else there.
local function stand(id, queue, state, h)
  local lane, priority = h[3] or 'primary', h[4] or '1'
  if state == 'queued' then
    local name = priority .. ':' .. lane .. ':' .. queue
    call('ZADD', SORTING .. ':' .. name, tonumber(h[5]) or 0, id)
    call('SADD', SORTING, name)
    redis.pcall('LREM', old_list(queue, priority, lane), 1, id)
    return count(queue .. ':' .. lane .. ':queued')
  end
  count(queue .. ':' .. state)
  if state == 'scheduled' then
    call('ZADD', P .. 'onward:scheduled', tonumber(h[6]) or tonumber(h[7]) or 0, id)
    redis.pcall('ZREM', P .. 'tasks:scheduled', id)
  elseif state == 'dead' then
    call('ZADD', P .. 'onward:dead', tonumber(h[8]) or 0, id)
    redis.pcall('LREM', P .. 'dlq:tasks', 1, id)
    redis.pcall('DEL', P .. 'dlq:task:' .. id)
  elseif state == 'waiting' and h[10] == 'approval' then
    call('ZADD', P .. 'onward:approvals', tonumber(h[11]) or 0, id)
  elseif state == 'running' and not h[9] then count(queue .. ':' .. lane .. ':offered') end
end

local function move(id)
  local old, new = P .. 'task:' .. id, P .. 'onward:task:' .. id
  rename(old, new, 'hash')
  rename(old .. ':payload', P .. 'onward:payload:' .. id, 'string')
  rename(old .. ':output', P .. 'onward:output:' .. id, 'string')
  rename(old .. ':mail', P .. 'onward:mail:' .. id, 'list')
  local h = call('HMGET', new, 'state', 'queue', 'lane', 'priority', 'place', 'run_at', 'due_at',
    'finished_at', 'lease_until', 'waiting_for', 'created_at')
  if h[2] then return stand(id, h[2], h[1] or 'queued', h) end
  -- No task of ours is left of it.
  for _, name in ipairs({ 'index', 'alarms', 'running' }) do call('ZREM', P .. 'onward:' .. name, id) end
end

local function move_some(after)
  local from = after and '(' .. after or '-inf'
  local found = call('ZRANGEBYSCORE', P .. 'onward:index', from, '+inf', 'WITHSCORES', 'LIMIT', 0, batch)
  if #found == 0 then call('HSET', AT, 'stage', 'queues') return end
  for at = 1, #found, 2 do move(found[at]) end
  call('HSET', AT, 'after', found[#found])
  call('HINCRBY', AT, 'done', #found / 2)
end

local function queue_some()
  local name = call('SRANDMEMBER', SORTING)
  if not name then call('HSET', AT, 'stage', 'use') return end
  local popped, ids = call('ZPOPMIN', SORTING .. ':' .. name, batch), {}
  for at = 1, #popped, 2 do ids[#ids + 1] = popped[at] end
  if #ids == 0 then call('SREM', SORTING, name)
  else call('RPUSH', P .. 'onward:queue:' .. name, unpack(ids)) end
end

-- Nothing starts or ends meanwhile: they stay in their order.
local function count_some(seen)
  local found = call('ZRANGE', P .. 'onward:running', seen, seen + batch - 1)
  if #found == 0 then call('HSET', AT, 'stage', 'end') return end
  for _, id in ipairs(found) do
    local h = call('HMGET', P .. 'onward:task:' .. id, 'state', 'type', 'queue')
    if h[1] == 'running' and h[2] and h[3] then
      call('HINCRBY', P .. 'onward:occupied:type:' .. h[2], h[3], 1)
    end
  end
  call('HSET', AT, 'seen', seen + #found)
end

local at = call('HMGET', AT, 'stage', 'after', 'seen')
if at[1] == 'tasks' then move_some(at[2])
elseif at[1] == 'queues' then queue_some()
elseif at[1] == 'use' then count_some(tonumber(at[3] or 0)) end
at = call('HMGET', AT, 'stage', 'done', 'total')
return { at[1] or 'end', tonumber(at[2] or 0), tonumber(at[3] or 0) }
