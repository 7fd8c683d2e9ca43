-- How workers claim tasks. Comes after ring.lua.

local CLAIM_FIELDS = { 'rev', 'type', 'profile', 'payload', 'created_at', 'expires_at', 'attempt_ms',
  'overrides', 'parent', 'key', 'events', 'mail', 'state', 'owner' }
-- A task without a rev has none of these (see `admit`), and most that are claimed have no rev.
local MOVED_FIELDS = { 'fence', 'generation', 'attempt', 'failures', 'retries', 'lost', 'journal',
  'lease_until', 'attempt_by', 'bulk', 'queued_at', 'partition', 'strict', 'batch', 'unique_key' }
local SINCE_BIRTH = { queued_at = true } -- of a task without a rev: its created_at

-- One task for one worker, by its CLAIM_FIELDS and MOVED_FIELDS; nothing is written. Returns the reply's
-- row, with an eleventh place for what most tasks have at its default; what its hash is to keep besides:
-- when to look at it, the number of its event, and when the attempt must end; and the fields that it
-- must lose.
local function decide_claim(id, h, m, letters, ask, queue, lane, now)
  local fence, rev = tonumber(m[1] or 0) + 1, tonumber(h[1] or 0) + 1
  local generation, attempt_ = tonumber(m[2] or 1), tonumber(m[3] or 0) + 1
  local expires_at, attempt_ms, n = number(h[6]), number(h[7]), tonumber(h[11] or 0) + 1
  local until_ = ask.lease_ms and now + ask.lease_ms
  local attempt_by = until_ and attempt_ms and now + attempt_ms or nil -- only offered: no clock yet
  local due_at = least(until_, attempt_by, expires_at)
  local unset = NONE
  if m[8] and not until_ then unset = { 'lease_until' } end
  if m[9] and not attempt_by then unset = { 'attempt_by', unset[1] } end
  local row = { id, ask.worker, fence, rev, h[2], queue, h[3], h[4], attempt_, tonumber(h[5]) }
  if m ~= NONE or lane ~= 'primary' or expires_at or attempt_ms or h[8] or h[9] or h[10] or h[12]
    or h[14] then
    row[11] = { generation, tonumber(m[4] or 0), tonumber(m[5] or 0), tonumber(m[6] or 0), lane,
      expires_at or NIL, attempt_by or NIL, attempt_ms or NIL, h[8] or NIL, h[9] or NIL,
      h[10] or NIL, m[7] or NIL, m[10] or NIL, h[14] or NIL,
      m[12] or '', m[13] and true or false, number(m[11]) or NIL, letters }
  end
  return row, due_at, n, attempt_by, unset
end

-- What this ask's claims of this call share; the rest is filled in for each.
local function prepare_claims(ask, now)
  ask.note_start = '{"worker":' .. cjson.encode(ask.worker) .. ',"attempt":'
  ask.note = {}
  ask.flat = { 'state', 'running', 'worker', ask.worker, 'started_at', stamp, 'fence', 0, 'rev', 0,
    'attempt', 0, 'due_at', 0, 'events', 0, 'e', '', '', '', '', '' }
  ask.many = 18
  if ask.lease_ms then
    ask.until_ = now + ask.lease_ms
    ask.until_text = text(ask.until_)
    ask.flat[19], ask.flat[20], ask.many = 'lease_until', ask.until_text, 20
  end
end

-- It is claimed by this ask: writes the event, and what is kept elsewhere than in its hash. Returns what
-- its hash keeps, and how many values those are; they hold until the next claim of the same ask.
local function record_claim(row, due_at, n, attempt_by, ask, queue, lane, now, costs)
  if not ask.flat then prepare_claims(ask, now) end
  local id, attempt_, flat, many, note = row[1], row[9], ask.flat, ask.many, ask.note
  if note.attempt ~= attempt_ then
    note = { 'task.claimed', ask.note_start .. text(attempt_) .. '}', attempt = attempt_ }
    ask.note = note
  end
  if due_at == ask.until_ then due_at = ask.until_text end -- formatted once
  flat[8], flat[10], flat[12] = text(row[3]), text(row[4]), text(attempt_)
  flat[14], flat[16], flat[17] = due_at, text(n), event_field(n)
  flat[18] = record(id, entry_of(note, n, row[11] and row[11][1] or 1))
  if attempt_by then
    flat[many + 1], flat[many + 2] = 'attempt_by', attempt_by
    many = many + 2
  end
  local type_, partition = row[5], row[11] and row[11][15] or ''
  occupy(queue, type_, partition, 1)
  if limits then start_under(queue, type_, partition, costs, now) end
  if not ask.lease_ms then count(queue, lane, 'offered', 1) end
  set_lease(id, due_at)
  publish_task(id)
  return flat, many
end

-- A task at the head of its queue, read and decided; false: it stands there by mistake, and is not
-- queued. Raises if it cannot be read.
local function read_claim(id, ask, queue, lane, now, belongs)
  local key = key_of(id)
  local h = call('HMGET', key, unpack(CLAIM_FIELDS))
  if h[13] and h[13] ~= 'queued' then return false end
  if not (h[2] and h[3] and h[4] and tonumber(h[5])) then error('no task, or not all of it') end
  local m = h[1] and call('HMGET', key, unpack(MOVED_FIELDS)) or NONE
  belongs[id] = (m[14] or m[15]) and m or nil
  local letters = tonumber(h[12] or 0) > 0 and letters_of(id) or NONE
  return decide_claim(id, h, m, letters, ask, queue, lane, now)
end

-- Long payloads, those of all at once. Of one that is not there the task cannot be read.
local function read_payloads(found, many)
  local rows, keys = {}, {}
  for at = 1, many do
    local one = found[at]
    if one and one[8] == '' then
      rows[#rows + 1], keys[#keys + 1] = at, long_of('payload', one[1])
    end
  end
  for from = 1, #keys, MOST do
    local payloads = call('MGET', unpack(keys, from, math.min(from + MOST - 1, #keys)))
    for turn, payload in ipairs(payloads) do
      local at = rows[from + turn - 1]
      if payload then found[at][8] = payload else found[at] = nil end
    end
  end
end

-- A row that cannot be read must not keep the tasks behind it from being claimed.
local function put_aside(id) put('ZADD', P .. 'onward:aside', stamp, id) end

-- It leaves its queue: what its hash keeps of that.
local function take(row, due_at, n, attempt_by, unset, rare, ask, queue, lane, now, costs)
  local key = key_of(row[1])
  put_all('HSET', key, record_claim(row, due_at, n, attempt_by, ask, queue, lane, now, costs))
  if unset ~= NONE then put_all('HDEL', key, unset, #unset) end
  if rare and rare[14] then count_batch(rare[14], 'queued', 'running') end
  if rare and rare[15] then run_unique(rare[15], row[1], put('ZSCORE', P .. 'onward:index', row[1]) or 0) end
  set_alarm(row[1], nil) -- a queued task has one if it may not wait for ever
end

-- From the head of one list, all of them read before the first is taken. Returns how many were claimed,
-- and whether the list may have more.
local function claim_from(list, limit, ask, want, now, claimed)
  local ids = call('LRANGE', list, '0', text(limit - 1))
  if #ids == 0 then return 0, false end
  local queue, lane, many, queued_, taken = want.queue, want.lane, #claimed, 0, 0
  local found, dues, numbers, bounds, unsets, met, belongs = {}, {}, {}, {}, {}, {}, {}
  each('claim', ids, function(id, at)
    local twice = met[id]
    met[id] = true -- before it is read, which may raise: it is counted, and put aside, once
    if twice then found[at] = false
    else
      found[at], dues[at], numbers[at], bounds[at], unsets[at] =
        read_claim(id, ask, queue, lane, now, belongs)
    end
  end, function(at) return ids[at] end)
  read_payloads(found, #ids)
  local left_ = put('LPOP', list, text(#ids))
  for at, id in ipairs(ids) do
    local row = found[at]
    if row then
      take(row, dues[at], numbers[at], bounds[at], unsets[at], belongs[id], ask, queue, lane, now)
      taken = taken + 1
      claimed[many + taken] = row
    elseif row == nil then put_aside(id) end
    if row ~= false then queued_ = queued_ + 1 end
  end
  count(queue, lane, 'queued', -queued_)
  count(queue, lane, 'running', taken)
  return taken, left_ and #ids == limit
end

local function claim_list(list, limit, ask, want, now, claimed)
  local found, more = 0, true
  while limit > found and more do
    local taken
    taken, more = claim_from(list, limit - found, ask, want, now, claimed)
    found = found + taken
  end
  return found, more
end
