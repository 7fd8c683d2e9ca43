-- How tasks come in, and how workers claim them. Comes after ledger.lua.

local CLAIM_FIELDS = { 'rev', 'type', 'profile', 'payload', 'created_at', 'expires_at', 'attempt_ms',
  'overrides', 'parent', 'key', 'events', 'mail', 'state', 'owner' }
-- A task without a rev has none of these (see `admit`), and most that are claimed have no rev.
local MOVED_FIELDS = { 'fence', 'generation', 'attempt', 'failures', 'retries', 'lost', 'journal',
  'lease_until', 'attempt_by', 'bulk', 'queued_at' }
local SINCE_BIRTH = { queued_at = true } -- of a task without a rev: its created_at
local NONE = {}

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
      number(m[11]) or NIL, letters }
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
  if ask.lease_ms then ask.flat[19], ask.flat[20], ask.many = 'lease_until', now + ask.lease_ms, 20 end
end

-- It is claimed by this ask: writes the event, and what is kept elsewhere than in its hash. Returns what
-- its hash keeps, and how many values those are; they hold until the next claim of the same ask.
local function record_claim(row, due_at, n, attempt_by, ask, queue, lane, now)
  if not ask.flat then prepare_claims(ask, now) end
  local id, attempt_, flat, many, note = row[1], row[9], ask.flat, ask.many, ask.note
  if note.attempt ~= attempt_ then
    note = { 'task.claimed', ask.note_start .. text(attempt_) .. '}', attempt = attempt_ }
    ask.note = note
  end
  flat[8], flat[10], flat[12] = text(row[3]), text(row[4]), text(attempt_)
  flat[14], flat[16], flat[17] = due_at, text(n), event_field(n)
  flat[18] = record(id, entry_of(note, n, row[11] and row[11][1] or 1))
  if attempt_by then
    flat[many + 1], flat[many + 2] = 'attempt_by', attempt_by
    many = many + 2
  end
  if not ask.lease_ms then count(queue, lane, 'offered', 1) end
  set_lease(id, due_at)
  publish_task(id)
  return flat, many
end

-- A task at the head of its queue, read and decided; false: it stands there by mistake, and is not
-- queued. Raises if it cannot be read.
local function read_claim(id, ask, queue, lane, now)
  local key = key_of(id)
  local h = call('HMGET', key, unpack(CLAIM_FIELDS))
  if h[13] and h[13] ~= 'queued' then return false end
  if not (h[2] and h[3] and h[4] and tonumber(h[5])) then error('no task, or not all of it') end
  local m = h[1] and call('HMGET', key, unpack(MOVED_FIELDS)) or NONE
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

-- From the head of one list, all of them read before the first is taken. Returns how many were claimed,
-- and whether the list may have more.
local function claim_from(list, limit, ask, want, now, claimed)
  local ids = call('LRANGE', list, 0, limit - 1)
  if #ids == 0 then return 0, false end
  local queue, lane, many, queued_, taken = want.queue, want.lane, #claimed, 0, 0
  local found, dues, numbers, bounds, unsets, met = {}, {}, {}, {}, {}, {}
  each('claim', ids, function(id, at)
    local twice = met[id]
    met[id] = true -- before it is read, which may raise: it is counted, and put aside, once
    if twice then found[at] = false
    else
      found[at], dues[at], numbers[at], bounds[at], unsets[at] = read_claim(id, ask, queue, lane, now)
    end
  end, function(at) return ids[at] end)
  read_payloads(found, #ids)
  local left = put('LPOP', list, #ids)
  for at, id in ipairs(ids) do
    local row = found[at]
    if row then
      local key, unset = key_of(id), unsets[at]
      put_all('HSET', key, record_claim(row, dues[at], numbers[at], bounds[at], ask, queue, lane, now))
      if unset ~= NONE then put_all('HDEL', key, unset, #unset) end
      set_alarm(id, nil) -- a queued task has one if it may not wait for ever
      taken = taken + 1
      claimed[many + taken] = row
    elseif row == nil then put_aside(id) end
    if row ~= false then queued_ = queued_ + 1 end
  end
  count(queue, lane, 'queued', -queued_)
  count(queue, lane, 'running', taken)
  return taken, left and #ids == limit
end

local function claim_for(ask, now, claimed)
  local found, dry = 0, {} -- lanes that have no more: they are not read again
  for _, want in ipairs(ask.wants) do
    local limit = math.min(want.limit, ask.limit - found)
    if limit <= 0 then break end
    local list = lane_key(want.queue, want.priority, want.lane)
    while limit > 0 and not dry[list] do
      local taken, more = claim_from(list, limit, ask, want, now, claimed)
      dry[list] = not more
      found, limit = found + taken, limit - taken
    end
  end
  return found
end

-- An ask with a free slot for a new task of this queue, if there is one.
local function free_slot(asks, queue)
  for _, ask in ipairs(asks) do
    if ask.left > 0 and ask.queues[queue] then return ask end
  end
end

-- Most submissions of a call are alike but for id, payload and idempotency key. What they share is sent
-- once, as a template; a submission is { id, which template, payload, key }. Of its hash, too, only what
-- differs is filled in for each: a table of its own, which grows, would cost as much as writing it.
local function prepare_templates(templates, many)
  for _, template in ipairs(templates) do
    local task = template.task
    task.payload = nil
    task.state = task.state or 'queued' -- a default too: redis-cli should show it
    template.lane, template.priority = task.lane or 'primary', task.priority or 1
    template.moved = NONE
    for at, name in ipairs(MOVED_FIELDS) do
      if task[name] and not SINCE_BIRTH[name] then
        if template.moved == NONE then template.moved = {} end
        template.moved[at] = task[name]
        task.rev = task.rev or 0 -- so that a claim looks for it
      end
    end
    template.list = lane_key(task.queue, template.priority, template.lane)
    template.flat = { 'place', '', 'payload', '' }
    template.many = flatten(template.flat, 4, task)
    for at, value in ipairs(many > FEW and template.flat or NONE) do
      if type(value) == 'number' then template.flat[at] = text(value) end -- once, and not for each task
    end
  end
  return templates
end

-- A new task into a free slot: into `flat`, behind its `many` values, goes what its hash keeps of that.
-- Returns how many values it has now.
local function insert_running(slot, flat, many, id, payload, template, now, claimed)
  local task = template.task
  local fields = { task.rev, task.type, task.profile, payload, task.created_at, task.expires_at,
    task.attempt_ms, task.overrides, task.parent, task.key, #template.events, [14] = task.owner }
  local row, due_at, n, attempt_by = decide_claim(id, fields, template.moved, NONE, slot, task.queue,
    template.lane, now)
  local kept, more = record_claim(row, due_at, n, attempt_by, slot, task.queue, template.lane, now)
  for at = 1, more do flat[many + at] = kept[at] end
  slot.left = slot.left - 1
  count(task.queue, template.lane, 'running', 1)
  claimed[#claimed + 1] = row
  return many + more
end

-- A new task where its state says.
local function insert_waiting(id, template)
  local task, state = template.task, template.task.state
  count(task.queue, template.lane, state, 1)
  if state == 'running' then
    set_lease(id, task.due_at or FOREVER)
    if not task.lease_until then count(task.queue, template.lane, 'offered', 1) end
  elseif task.due_at then set_alarm(id, task.due_at) end
  if state == 'queued' then
    later('RPUSH', template.list, id)
    publish_queue(task.queue)
  else
    if state == 'scheduled' then later('ZADD', P .. 'onward:scheduled', task.run_at, id)
    elseif task.waiting_for == 'approval' then later('ZADD', P .. 'onward:approvals', task.created_at, id) end
    publish_task(id)
  end
end

local function key_name(key) return P .. 'onward:key:' .. key.scope .. '|' .. key.key end

-- One submission; returns its receipt: 'fresh', 'running', 'full', or why not and whose key it is.
local function admit(submission, templates, asks, now, claimed)
  local id, template, payload, key = submission[1], templates[submission[2]], submission[3], submission[4]
  local task = template.task
  if key then
    local known = call('HMGET', key_name(key), 'body', 'task')
    if known[2] then return { known[1] == key.body and 'known' or 'reused', known[2] } end
  end
  local waiting, slot = depth(task.queue), nil
  if task.state == 'queued' and waiting == 0 then slot = free_slot(asks, task.queue) end
  if not slot and template.cap and waiting >= template.cap then return 'full' end
  local place, name = next_place(), key_of(id)
  -- Everything is read. From here on nothing raises.
  local flat = template.flat
  flat[2], flat[4] = place, put_long(id, 'payload', payload)
  local many = write_events(flat, template.many, id, 0, task.generation or 1, template.events)
  if key then
    put('HSET', key_name(key), 'body', key.body, 'task', id)
    flat[many + 1], flat[many + 2] = 'skey', key_name(key)
    many = many + 2
  end
  if slot then many = insert_running(slot, flat, many, id, payload, template, now, claimed)
  else insert_waiting(id, template) end
  put_all('HSET', name, flat, many)
  later('ZADD', P .. 'onward:index', place, id)
  if task.session then
    put('ZADD', P .. 'onward:session:' .. task.session, place, id)
    later('ZADD', P .. 'onward:sessions', place, task.session)
  end
  return slot and 'running' or 'fresh'
end

-- Tasks that are queued already go first; slots that are left are for new ones.
local function fill(asks, now, claimed)
  for _, ask in ipairs(asks) do
    ask.left, ask.queues = ask.limit, {}
    for _, want in ipairs(ask.wants) do ask.queues[want.queue] = true end
    ask.left = ask.left - (attempt('claim', ask.worker, claim_for, ask, now, claimed) or ask.left)
  end
end

local function insert(keys, args)
  local now, request = begin_publishing(keys, args)
  local submissions, asks, templates = request[2], request[3], prepare_templates(request[4], #request[2])
  local claimed, receipts = {}, {}
  take_places(#submissions)
  fill(asks, now, claimed)
  each('insert', submissions, function(submission, at)
    receipts[at] = admit(submission, templates, asks, now, claimed)
  end, function(at)
    receipts[at] = 'refused'
    return submissions[at][1]
  end)
  return finish({ receipts, claimed })
end

local function claim(keys, args)
  local now, request = begin_publishing(keys, args)
  local claimed = {}
  for _, ask in ipairs(request[2]) do
    attempt('claim', ask.worker, claim_for, ask, now, claimed)
  end
  return finish(claimed)
end
