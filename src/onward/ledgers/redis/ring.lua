-- Which partitions of a lane take turns, and which are out. Comes after limits.lua.
--
-- A lane that has only the partition "" is a list and nothing else. One with others has a ring: each
-- partition stands in it once, by turn, and leaves it when nothing of it is queued, or when its limit
-- holds it back. So a claim never meets one that is out. It comes back when one of its tasks ends, when
-- something is queued in it anew, when its rate's instant has come, and when the bounds change. One that
-- came back too early costs one look.

local enter, leave, come_in, stay_out, leave_ring, leave_line, close_lane, line_of, typed_name, any_ring, signature_of, names_of_lane, lines_of

do

local function rings() return P .. 'onward:rings' end
local function ring_of(name) return P .. 'onward:ring:' .. name end
local function out_of(name) return P .. 'onward:out:' .. name end
local function back_of(partition) return P .. 'onward:back:' .. partition end
local function passed_of(name) return P .. 'onward:passed:' .. name end

-- The lane of one type that was passed over in this one, and back.
function typed_name(name, type_) return name .. SEP .. type_ end

local function split(name)
  local at = string.find(name, SEP, 1, true)
  if at then return string.sub(name, 1, at - 1), string.sub(name, at + 1) end
  return name, nil
end

-- The list of one partition.
function line_of(name, partition)
  local main, type_ = split(name)
  local key = P .. 'onward:queue:' .. main
  if type_ then return key .. SEP .. partition .. SEP .. type_ end
  return partition == '' and key or key .. SEP .. partition
end

-- A lane and those of the types that were passed over in it, which are older.
function names_of_lane(name)
  local names = {}
  for at, type_ in ipairs(call('SMEMBERS', passed_of(name))) do names[at] = typed_name(name, type_) end
  names[#names + 1] = name
  return names
end

-- The lists of one partition.
function lines_of(name, partition)
  local lines = names_of_lane(name)
  for at, lane in ipairs(lines) do lines[at] = line_of(lane, partition) end
  return lines
end

-- At the end of this call, something of this partition is queued, or may start.
function enter(name, partition)
  entering = entering or {}
  local new = entering[name]
  if not new then new = {} entering[name] = new end
  if not new[partition] then
    new[partition] = true
    new[#new + 1] = partition
  end
end

-- A task of this partition occupies no more.
function leave(partition)
  left = left or {}
  left[partition] = true
end

-- Those that are in the ring already keep their turn.
function come_in(name, partitions)
  local ring, out = ring_of(name), out_of(name)
  local last = put('ZRANGE', ring, -1, -1, 'WITHSCORES')
  local turn = tonumber(last and last[2] or 0)
  for from = 1, #partitions, MOST / 2 do
    local flat, names = {}, {}
    for at = from, math.min(from + MOST / 2 - 1, #partitions) do
      names[#names + 1] = partitions[at]
      flat[#flat + 1], flat[#flat + 2] = text(turn + at), partitions[at]
    end
    put('ZADD', ring, 'NX', unpack(flat))
    if put('ZREM', out, unpack(names)) ~= 0 then
      for _, partition in ipairs(names) do put('SREM', back_of(partition), name) end
    end
  end
  put('HSETNX', rings(), name, '')
end

-- Its limit holds it back, until an instant or for ever. Only its turn is left to be taken from the ring.
function stay_out(name, partition, until_)
  put('ZADD', out_of(name), until_, partition)
  if until_ == FOREVER then put('SADD', back_of(partition), name) end
end

function leave_ring(name, partition)
  put('ZREM', ring_of(name), partition)
  if put('ZREM', out_of(name), partition) ~= 0 then put('SREM', back_of(partition), name) end
end

-- A lane that is a plain list again is one. "" needs no ring, unless it is of a type that was passed over.
function close_lane(name)
  local main, type_ = split(name)
  local first = put('ZRANGE', ring_of(name), 0, 1) or NONE
  if #first > 1 or first[1] and (type_ or first[1] ~= '') then return end
  if put('EXISTS', out_of(name), passed_of(name)) ~= 0 then return end
  if type_ then
    if put('EXISTS', line_of(name, '')) ~= 0 then return end
    put('SREM', passed_of(main), type_)
  end
  put('DEL', ring_of(name))
  put('HDEL', rings(), name)
end

-- A queued task goes elsewhere without having been claimed.
function leave_line(name, partition, type_, id)
  local typed = false
  if put('LREM', line_of(name, partition), 1, id) == 0 then
    typed = put('LREM', line_of(typed_name(name, type_), partition), 1, id) == 1
  end
  for _, lane in ipairs(typed and { typed_name(name, type_), name } or { name }) do
    if (typed or partition ~= '') and put('EXISTS', line_of(lane, partition)) == 0 then
      leave_ring(lane, partition)
      close_lane(lane)
    end
  end
end

-- Whether any lane is more than a list: one look for a call.
function any_ring()
  if ringed == nil then ringed = call('EXISTS', rings()) == 1 end
  return ringed
end

-- The bounds under which its partitions went out; nil: it is a plain list.
function signature_of(name) return any_ring() and call('HGET', rings(), name) or nil end

function settle_rings()
  for partition in pairs(left or NONE) do
    local back = back_of(partition)
    -- Asked twice rather than left out: it would wait for the next end of one of its tasks.
    for _, name in ipairs(put('SMEMBERS', back) or put('SMEMBERS', back) or NONE) do enter(name, partition) end
  end
  for name, partitions in pairs(entering or NONE) do come_in(name, partitions) end
end

end
