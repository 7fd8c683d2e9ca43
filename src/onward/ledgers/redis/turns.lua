-- Claims where partitions take turns, or bounds hold. Comes after claims.lua.

local claim_in_turn, lanes_of

do

local BATCH = 100 -- of tasks that are passed over

-- A lane as a claim sees it: its bounds that hold for all of it, and for each partition, and those that
-- hold for some types in it alone. `was`: under which bounds partitions went out; nil: it has no ring.
local function lane_of(name, want, type_, signature)
  local lane = { name = name, type = type_, was = signature, all = {}, each = {}, others = {}, rated = false,
    signature = '' }
  for _, at in ipairs(want.bounds or NONE) do
    local bound = limits[at]
    local into
    if not (bound.queues[want.queue] or type_ and bound.types[type_]) then into = not type_ and lane.others
    elseif bound.each then
      into = lane.each
      lane.signature = lane.signature .. bound.signature .. SEP
    else into = lane.all end
    if into then
      into[#into + 1] = bound
      lane.rated = lane.rated or bound.step ~= nil
    end
  end
  return lane
end

-- Where its first partition's head stands among all.
local function head_place(lane)
  local first = call('ZRANGE', P .. 'onward:ring:' .. lane.name, 0, 0)[1]
  local id = first and call('LINDEX', line_of(lane.name, first), 0)
  return id and tonumber(call('HGET', key_of(id), 'place') or 0) or FOREVER
end

-- The lanes of a want: what was passed over is older, and comes first.
function lanes_of(want)
  local name = lane_name(want.queue, want.priority, want.lane)
  local signature = signature_of(name)
  local lanes = {}
  if signature then
    for _, type_ in ipairs(call('SMEMBERS', P .. 'onward:passed:' .. name)) do
      local typed = typed_name(name, type_)
      local lane = lane_of(typed, want, type_, signature_of(typed) or '')
      lane.place = head_place(lane)
      lanes[#lanes + 1] = lane
    end
    table.sort(lanes, function(a, b) return a.place < b.place end)
  end
  lanes[#lanes + 1] = lane_of(name, want, nil, signature)
  return lanes
end

-- Before it is claimed from: who is out for bounds that have changed since, or until now, comes back.
local function open_lane(lane, limit, now)
  local name, out = lane.name, P .. 'onward:out:' .. lane.name
  if lane.signature ~= lane.was then
    come_in(name, call('ZRANGE', out, 0, -1))
    put('HSET', P .. 'onward:rings', name, lane.signature)
  else
    local back = call('ZRANGEBYSCORE', out, '-inf', now, 'LIMIT', 0, limit)
    if #back > 0 then come_in(name, back) end
  end
  if call('EXISTS', line_of(name, '')) == 1 then come_in(name, { '' }) end
end

-- Behind those of its type that were passed over before, by place.
local function pass_over(lane, line, partition, type_, ids)
  local typed = typed_name(lane.name, type_)
  local to = line_of(typed, partition)
  local last = call('LINDEX', to, -1)
  local function place_of(id) return tonumber(call('HGET', key_of(id), 'place') or 0) end
  if last and place_of(last) > place_of(ids[1]) then
    ids = { ids[1] }
    local behind = find_predecessor(to, ids[1], place_of(ids[1]))
    if behind then put('LINSERT', to, 'AFTER', behind, ids[1]) else put('LPUSH', to, ids[1]) end
  else put_all('RPUSH', to, ids, #ids) end
  put('LPOP', line, #ids)
  put('SADD', P .. 'onward:passed:' .. lane.name, type_)
  come_in(typed, { partition })
  put('HSETNX', P .. 'onward:rings', lane.name, '')
  lane.passed = true
end

-- The tasks at the head of a line that are of this type, the first of which is.
local function same_type(line, type_)
  local ids = {}
  for at, id in ipairs(call('LRANGE', line, 0, BATCH - 1)) do
    if at > 1 and call('HGET', key_of(id), 'type') ~= type_ then break end
    ids[at] = id
  end
  return ids
end

-- Whether a bound of its type alone holds this one back, or one of its type is held back before it.
local function is_passed(lane, partition, type_, costs, now)
  local bounds = {}
  for _, bound in ipairs(lane.others) do
    if bound.types[type_] then bounds[#bounds + 1] = bound end
  end
  if blocked_until(bounds, partition, costs, now) then return true end
  return (lane.was or lane.passed) and call('EXISTS', line_of(typed_name(lane.name, type_), partition)) == 1
end

-- The head of a line, read and decided; nil: it cannot be read.
local function read_head(id, ask, lane, want, now)
  local found, belongs, due_at, n, attempt_by, unset = {}, {}, nil, nil, nil, nil
  found[1], due_at, n, attempt_by, unset = read_claim(id, ask, want.queue, want.lane, now, belongs)
  if found[1] then read_payloads(found, 1) end
  if found[1] == nil then error('its payload is gone') end
  return { found[1], due_at, n, attempt_by, unset, belongs[id], costs_of(id, lane.rated) }
end

-- One task of a partition. Returns what became of its turn: 'taken', and whether it has more; 'empty';
-- 'out', and until when; 'stop': a bound of all partitions is in its way.
local function visit(lane, partition, ask, want, now, claimed)
  local line = line_of(lane.name, partition)
  while true do
    local ids = call('LRANGE', line, '0', '1')
    local id = ids[1]
    if not id then return 'empty' end
    local head = attempt('claim', id, read_head, id, ask, lane, want, now)
    local row = head and head[1]
    if not row then
      put('LPOP', line, '1')
      if not head then
        put_aside(id)
        count(want.queue, want.lane, 'queued', -1)
      end
    elseif not lane.type and (lane.was or #lane.others > 0)
      and is_passed(lane, partition, row[5], head[7], now) then
      pass_over(lane, line, partition, row[5], same_type(line, row[5]))
    else
      local until_ = blocked_until(lane.each, partition, head[7], now)
      if until_ then return 'out', until_ end
      if blocked_until(lane.all, partition, head[7], now) then return 'stop' end
      put('LPOP', line, '1')
      take(row, head[2], head[3], head[4], head[5], head[6], ask, want.queue, want.lane, now, head[7])
      claimed[#claimed + 1] = row
      count(want.queue, want.lane, 'queued', -1)
      count(want.queue, want.lane, 'running', 1)
      return 'taken', ids[2] ~= nil
    end
  end
end

-- One turn of a partition. Returns 'again' if it has another one, 'gone', or 'stop'. One that has just
-- reached its limit must not be met by the next claim.
local function take_turn(lane, partition, ask, want, now, claimed)
  local what, value = visit(lane, partition, ask, want, now, claimed)
  if what == 'stop' then return what end
  if what == 'taken' and value then
    value = blocked_until(lane.each, partition, NONE, now)
    if not value then return 'again' end
    what = 'out'
  end
  if what == 'out' and partition ~= '' then stay_out(lane.name, partition, value) end
  return 'gone'
end

-- One turn for each, as many as are wanted. Returns how many were claimed, and whether there may be more.
local function go_round(lane, limit, ask, want, now, claimed)
  local ring, taken, stopped = P .. 'onward:ring:' .. lane.name, 0, false
  local heads = lane.was and call('ZRANGE', ring, '0', text(limit - 1)) or { '' }
  local last = lane.was and call('ZRANGE', ring, -1, -1, 'WITHSCORES') or NONE
  local turn, turns, many, gone = tonumber(last[2] or 0), {}, 0, {}
  for _, partition in ipairs(heads) do
    turn = turn + 1
    local before = #claimed
    local ok, what = pcall(take_turn, lane, partition, ask, want, now, claimed)
    taken = taken + #claimed - before
    if not ok then -- it is not looked at twice, and the others have their turns
      note_fault('claim ' .. lane.name, what)
      stopped, what = true, put('EXISTS', line_of(lane.name, partition)) == 0 and 'gone' or 'again'
    elseif what == 'stop' then
      stopped = true
      break
    end
    if what == 'gone' then gone[#gone + 1] = partition
    else
      turns[many + 1], turns[many + 2] = text(turn), partition
      many = many + 2
    end
  end
  if not lane.was then return taken, not stopped and taken > 0 end
  if many > 0 then put_all('ZADD', ring, turns, many) end
  put_all('ZREM', ring, gone, #gone)
  return taken, not stopped and #heads > 0
end

local function claim_lane(lane, limit, ask, want, now, claimed)
  for _, bound in ipairs(lane.all) do limit = math.min(limit, room_of(bound)) end
  if not lane.was then
    for _, bound in ipairs(lane.each) do limit = math.min(limit, room_of(bound, '')) end
  end
  if limit <= 0 then return 0 end
  if not lane.was and not lane.rated and #lane.others == 0 then
    return claim_list(line_of(lane.name, ''), limit, ask, want, now, claimed)
  end
  if lane.was then open_lane(lane, limit, now) end
  local found, more = 0, true
  while more and found < limit do
    local taken
    taken, more = go_round(lane, limit - found, ask, want, now, claimed)
    found = found + taken
  end
  if lane.type then close_lane(lane.name) end
  return found
end

function claim_in_turn(limit, ask, want, now, claimed)
  local found, lanes = 0, lanes_of(want)
  for _, lane in ipairs(lanes) do
    if found < limit then found = found + claim_lane(lane, limit - found, ask, want, now, claimed) end
  end
  local main = lanes[#lanes]
  if main.was then close_lane(main.name) end
  return found
end

end

local function claim_for(ask, now, claimed)
  local found, dry = 0, {} -- lanes that have no more: they are not read again
  for _, want in ipairs(ask.wants) do
    local limit = math.min(want.limit, ask.limit - found)
    if limit <= 0 then break end
    if want.bounds or any_ring() and signature_of(lane_name(want.queue, want.priority, want.lane)) then
      found = found + claim_in_turn(limit, ask, want, now, claimed)
    else
      local list = lane_key(want.queue, want.priority, want.lane)
      if not dry[list] then
        local taken, more = claim_list(list, limit, ask, want, now, claimed)
        dry[list] = not more
        found = found + taken
      end
    end
  end
  return found
end
