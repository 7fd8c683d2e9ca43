-- What occupies, and whether the bounds of a claim let another task start. Comes after ledger.lua.
--
-- Whatever occupies is counted by type and queue, for every task: a bound that is declared later covers
-- what runs already. How many run on a queue is in onward:counts. Only what has a partition is also
-- counted by that, and only what occupies without running by itself: a queue without either costs one
-- command for each type that a call starts or ends.

local occupy, occupy_waiting, prepare_limits, covers, room_of, blocked_until, start_under, rate_at, costs_of, usage_of

-- In any window of a rate's length, what starts costs at most its count and burst together; see
-- core/limits.py. Instants of rates are microseconds, as whole numbers below 2^53.
local SLACK_MS = 60000 -- that a rate's instant is kept longer than it is of use

do

local function partition_key(queue, partition) return P .. 'onward:occupied:in:' .. queue .. SEP .. partition end
local function more_key() return P .. 'onward:occupied:more' end

local function count_in(into, of, name, change)
  local values = into[of]
  if not values then values = {} into[of] = values end
  values[name] = (values[name] or 0) + change
end

-- A task of this type begins (1) or ceases (-1) to occupy.
function occupy(queue, type_, partition, change)
  if partition and partition ~= '' then
    occupied = occupied or {}
    count_in(occupied, partition_key(queue, partition), type_, change)
    queue = queue .. SEP
    count_in(occupied, more_key(), queue, change)
  end
  by_type = by_type or {}
  count_in(by_type, type_, queue, change)
end

-- The same of those that do not run: what waits to be tried again in strict order.
function occupy_waiting(queue, change)
  occupied = occupied or {}
  count_in(occupied, more_key(), queue, change)
end

-- `bounds` are those of all wants of this call, which name them by number.
function prepare_limits(bounds)
  if not bounds or #bounds == 0 then return end
  for _, bound in ipairs(bounds) do
    local queues, types = {}, {}
    for _, queue in ipairs(bound.queues) do queues[queue] = true end
    for _, type_ in ipairs(bound.types) do types[type_] = true end
    bound.queues, bound.types, bound.used, bound.paid, bound.started = queues, types, {}, {}, {}
    bound.signature = table.concat(
      { bound.name, bound.most or '', bound.step or '', bound.burst or '' }, SEP)
  end
  limits = bounds
end

function covers(bound, queue, type_) return bound.queues[queue] or bound.types[type_] or false end

local function number_of(key, field) return tonumber(call('HGET', key, field) or 0) end

-- How many occupy this queue: all (`partition` is nil), or those of one partition.
local function sum_of_queue(queue, partition)
  if partition and partition ~= '' then
    local sum = 0
    for _, many in ipairs(call('HVALS', partition_key(queue, partition))) do sum = sum + tonumber(many) end
    return sum
  end
  local more = call('HMGET', more_key(), queue, queue .. SEP)
  local sum = number_of(P .. 'onward:counts', tally_of(queue, '', 'running')) + tonumber(more[1] or 0)
  return partition and sum - tonumber(more[2] or 0) or sum
end

-- The same of a type on the queues that are not among these.
local function sum_of_type(type_, queues, partition)
  local sum, flat = 0, call('HGETALL', P .. 'onward:occupied:type:' .. type_)
  for at = 1, #flat, 2 do
    local queue, many = flat[at], tonumber(flat[at + 1])
    local apart = string.sub(queue, -1) == SEP
    if apart then queue = string.sub(queue, 1, -2) end
    if not queues[queue] then
      if not partition then sum = sum + many
      elseif partition == '' then sum = sum + (apart and 0 or many)
      elseif apart then sum = sum + number_of(partition_key(queue, partition), type_) end
    end
  end
  return sum
end

-- Which of a bound's counts and instants: one partition's, or, by `true`, the only one that there is.
local function whose(bound, partition) return bound.each and partition or true end

local function used(bound, partition)
  local who = whose(bound, partition)
  if not bound.used[who] then
    add_up_now() -- what this call has counted so far
    local sum, one = 0, bound.each and partition or nil
    for queue in pairs(bound.queues) do sum = sum + sum_of_queue(queue, one) end
    for type_ in pairs(bound.types) do sum = sum + sum_of_type(type_, bound.queues, one) end
    bound.used[who] = sum
  end
  return bound.used[who]
end

-- How many more may run at once.
function room_of(bound, partition)
  return bound.most and math.max(0, bound.most - used(bound, partition)) or FOREVER
end

local function rate_key(bound, who)
  local key = P .. 'onward:rate:' .. bound.name
  return bound.each and key .. SEP .. who or key
end

-- When all that has started is paid off.
local function paid_at(bound, partition)
  local who = whose(bound, partition)
  if not bound.paid[who] then bound.paid[who] = tonumber(put('GET', rate_key(bound, who)) or 0) end
  return bound.paid[who]
end

-- From when on a start of this cost may be made, in milliseconds.
function rate_at(bound, partition, cost)
  return math.ceil((paid_at(bound, partition) + (cost - bound.burst - 1) * bound.step) / 1000)
end

-- From when on these bounds let a task start; FOREVER: once another task ends. Nil: now.
function blocked_until(bounds, partition, costs, now)
  local latest = now
  for _, bound in ipairs(bounds) do
    if bound.most and used(bound, partition) >= bound.most then return FOREVER end
    if bound.step then latest = math.max(latest, rate_at(bound, partition, costs[bound.name] or 1)) end
  end
  return latest > now and latest or nil
end

-- A task starts: it counts under all bounds of this call that cover it.
function start_under(queue, type_, partition, costs, now)
  for _, bound in ipairs(limits) do
    if covers(bound, queue, type_) then
      local who = whose(bound, partition)
      if bound.used[who] then bound.used[who] = bound.used[who] + 1 end
      if bound.step then
        local cost = costs and costs[bound.name] or 1
        bound.paid[who] = math.max(paid_at(bound, partition), now * 1000) + cost * bound.step
        bound.started[who] = true
      end
    end
  end
end

-- At the end of a call. A rate's instant expires once nothing could start later for it.
function write_rates()
  local now = tonumber(stamp)
  for _, bound in ipairs(limits) do
    for who in pairs(bound.started) do
      local paid = bound.paid[who]
      local life = math.ceil(paid / 1000) - now + bound.per_ms + SLACK_MS
      put('SET', rate_key(bound, who), string.format('%.0f', paid), 'PX', string.format('%.0f', life))
    end
  end
end

-- What a start costs, by the name of the bound.
function costs_of(id, rated)
  local costs = rated and call('HGET', key_of(id), 'costs')
  return costs and cjson.decode(costs) or NONE
end

function usage_of(bound, partition, now)
  local from = bound.step and math.max(now, rate_at(bound, partition, 1)) or NIL
  return { used(bound, partition), from }
end

end
