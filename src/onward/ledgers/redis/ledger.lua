#!lua name=onward7
-- The ledger in Redis. Every function takes one key, the prefix ("" or "{onward}:" for a cluster, so
-- that all keys share a slot), and one msgpack argument with many items. Nothing here decides: a move
-- contains what becomes of a task, and is refused unless state, fence and rev are what it expects.
--
-- A script that fails half way is not rolled back. So each item is read first (`call`, which may
-- raise) and written last (`put`, which does not): an item that cannot be read is refused by itself
-- and changes nothing, and a write that Redis refuses does not keep the writes after it, of this
-- item or of its neighbours, from being made. It is noted in onward:faults.
--
-- The library's number goes up when arguments or replies of its functions change: during an upgrade
-- servers of two versions share a ledger, and each calls its own.
--
-- The key space, after the prefix. All of it begins with onward: and no other program writes there.
--   onward:task:{id}              hash: the fields of core.task.Task that are not at their default,
--                                 and the store's own: `place` (order in its queue and among all),
--                                 `mail` (letters unread) and `mail_bytes`, `final` (last generation
--                                 that ended before this one), `skey` (its idempotency key's key),
--                                 `e1`, `e2` … (where in the log its events are)
--   onward:payload:{id}, onward:output:{id}
--                                 string, when longer than SHORT (its field is empty then): a long
--                                 value would cost the hash its compact form
--   onward:mail:{id}              list of letters, name and body alternating
--   onward:queue:{priority}:{lane}:{queue}
--                                 list of ids, first in first out; the name comes last, so that none
--                                 can be taken for a priority. What precedes a name is its lane's:
--                                 L stands for all of it below. No name has a SEP in it
--   onward:queue:{L}SEP{partition}
--                                 the same of those that have a partition
--   onward:queue:{L}SEP{partition}SEP{type}
--                                 of a type that was passed over, because a bound held it back and not
--                                 the other types of this queue: LSEP{type} is a lane by itself
--   onward:passed:{L}             set of those types
--   onward:ring:{L}               zset of partitions by turn, of those that something is queued in and
--                                 that are not out; "" is in it only while a claim is at work
--   onward:out:{L}                zset of partitions that their limit holds back, by the instant from
--                                 which a rate lets them start; FOREVER: until one of their tasks ends
--   onward:back:{partition}       set of the lanes where it is out for ever
--   onward:rings                  hash of the lanes that have one of these: the bounds under which
--                                 partitions went out; with others they all come back
--   onward:occupied:type:{type}   hash by queue: how many tasks of this type run, are offered, or wait
--                                 for their retry in strict order; those with a partition by
--                                 {queue}SEP
--   onward:occupied:in:{queue}SEP{partition}
--                                 hash by type: the same of one partition, if it has a name
--   onward:occupied:more          hash by queue: those of them that do not run, and by {queue}SEP those
--                                 with a partition
--   onward:rate:{bound}, onward:rate:{bound}SEP{partition}
--                                 string: the microsecond at which all that has started is paid off
--   onward:scheduled              zset of scheduled tasks' ids by run_at
--   onward:dead                   zset of dead tasks' ids by the instant they died
--   onward:approvals              zset of ids of tasks that wait for approval, by the instant they were
--                                 asked for
--   onward:counts                 hash: how many by queue and state ({queue}:{state}); the queued ones
--                                 by lane ({queue}:{lane}:queued), and so those of the running ones
--                                 that are only offered
--   onward:running                zset of running tasks' ids by due_at
--   onward:alarms                 zset of other tasks' ids by due_at, where they have one
--   onward:index                  zset of ids by place at birth: what `find` walks, newest first
--   onward:session:{session}, onward:in-batch:{batch}, onward:tag:{tag}
--                                 the same of one session's tasks, of one batch's, of those with a tag
--   onward:sessions               zset of sessions by the place of the newest task of each
--   onward:events                 stream: the event log and outbox; of an entry `t` is the task, and
--                                 `e` number, generation, type, instant and data, separated by SEP
--   onward:place                  string: the last place given
--   onward:layout                 string: the number of this layout (see layout.py)
--   onward:epoch                  string: which ledger this is (see keeping.py)
--   onward:key:{scope}|{key}      hash: body and task of an idempotency key
--   onward:forget                 zset of such keys by the instant they may be forgotten
--   onward:doc:{kind}             hash of documents
--   onward:batch:{batch}          hash: how many of its tasks are in which state
--   onward:holders:{key}          zset of ids of live tasks with this unique key, by place at birth
--   onward:runners:{key}          zset of those of them that run
--   onward:debounce:{key}         string: id of the task with this debounce key that has not started
--   onward:effect:{scope}|{key}   hash of effects by name; see effects.lua
--   onward:ends                   zset of documents that end, kind and key, by the instant
--   onward:aside                  zset of ids whose rows cannot be read, by the instant that was seen
--   onward:faults                 list: the last writes that Redis refused
--   onward:rehearsal:{type}       one of each, for a moment at the start of a server
--
-- A call that changes something publishes it on the channel onward:bell, for the other servers: which
-- server called, the queues with new work, the tasks with new events, and how tasks have ended.

local LIBRARY = 'onward7'
local SEP = '\31'
local SHORT = 64
local MOST_SENT = 512 -- of an ending whose result or error is longer only the id is published
local FOREVER = 9e15
local AHEAD = 2 ^ 52 -- less than any place given otherwise, and still a whole number
local LONG = { payload = 'onward:payload:', result = 'onward:output:' }
local FINAL_EVENTS = { ['task.succeeded'] = true, ['task.failed'] = true, ['task.canceled'] = true }
local NONE = {}
local NIL -- cjson.null, which msgpack writes as nil: a list cannot hold nil itself
local LIVE = { scheduled = true, queued = true, running = true, waiting = true }
local MOST = 1000 -- arguments of one command, an even number
local FEW = 8 -- submissions of one call; with more of them it pays to prepare what they share
local RARE = { 'partition', 'batch', 'unique_key', 'debounce_key' } -- fields that few tasks have
local LANES = { 'primary', 'retry' }
local BY_LANE = { queued = true, offered = true } -- what is counted by lane, too
local FAULTS = 100 -- kept of them

local P, LOG -- the prefix of this call, and the event log's key
local stamp -- the instant of this call, as text
local call -- redis.call, which does not exist while loading; only to read: it raises
local write_ -- redis.pcall, for `put`
local faults -- writes of this call that were refused, and items that could not be read
local delta, queued, stored -- counts changed by this call, of queued tasks by queue, and as it was
local batched, ended -- the same of batches, by batch and state; batches of which a task has ended
local batches, alarms, leases -- what is written at the end of this call, many in one command
local by_type, occupied -- counts of what occupies, changed by this call (see limits.lua)
local limits -- the bounds that came with this call; nil: none
local entering, left, ringed -- what changes in rings at the end of this call (see ring.lua)
local write_rates, settle_rings -- at the end of a call; see there
local news -- what is published at the end of this call; nil: no other server listens
local spare, last -- places taken but not given yet, and the last one given

local function begin(keys, args)
  P, LOG, NIL, news = keys[1], keys[1] .. 'onward:events', cjson.null, nil
  call, write_, faults = redis.call, redis.pcall, {}
  delta, queued, stored, batches, alarms, leases, spare = {}, {}, {}, {}, {}, {}, 0
  batched, ended, by_type, occupied, limits, entering, left, ringed = nil, nil, nil, nil, nil, nil, nil, nil
  -- One that was emptied must not be filled anew as if nothing had happened.
  if call('EXISTS', P .. 'onward:epoch') == 0 then error('no ledger here') end
  local request = cmsgpack.unpack(args[1])
  stamp = string.format('%.0f', request[1])
  return request[1], request
end

local function note_fault(about, error)
  if type(error) == 'table' then error = error.err end
  faults[#faults + 1] = stamp .. ' ' .. about .. ': ' .. tostring(error)
end

-- Writes. Returns the reply, or nil if Redis refused: what comes after it is written all the same,
-- because a task that is half written is worse than one that lacks a single key.
local function put(command, key, ...)
  local reply = write_(command, key, ...)
  if type(reply) == 'table' and reply.err then
    note_fault(command .. ' ' .. key, reply)
    return nil
  end
  return reply
end

-- The same of a command that takes any number of values, the first `many` of these; unpacking too
-- many would raise.
local function put_all(command, key, values, many)
  if many == 0 then return end
  if many <= MOST then -- as `put`, without handing them on once more
    local reply = write_(command, key, unpack(values, 1, many))
    if type(reply) == 'table' and reply.err then note_fault(command .. ' ' .. key, reply) end
    return
  end
  for at = 1, many, MOST do put(command, key, unpack(values, at, math.min(at + MOST - 1, many))) end
end

-- One item of a call. Returns nil if it cannot be read: then nothing of it is written, and its
-- neighbours go on.
local function attempt(about, id, decide, ...)
  local ok, answer = pcall(decide, ...)
  if ok then return answer end
  note_fault(about .. ' ' .. id, answer)
  return nil
end

-- Many items, each as by `attempt`; `decide` notes its answer itself, and `refuse` that of one that
-- cannot be read, whose id it returns. They share one pcall for as long as none fails: it costs more
-- than many a read.
local function each(about, items, decide, refuse)
  local at, many = 0, #items
  local function go_on()
    while at < many do
      at = at + 1
      decide(items[at], at)
    end
  end
  while at < many do
    local ok, error = pcall(go_on)
    if not ok then note_fault(about .. ' ' .. refuse(at), error) end
  end
end

-- The same for a call that publishes what it changes. Its second argument is the calling server's id, or
-- '' if that server does not listen itself.
local function begin_publishing(keys, args)
  local now, request = begin(keys, args)
  local from = args[2] or ''
  local listeners = redis.pcall('PUBSUB', 'NUMSUB', P .. 'onward:bell')[2] or 0
  if listeners > (from == '' and 0 or 1) then
    news = { from = from, queues = {}, tasks = {}, endings = {} }
  end
  return now, request
end

-- Published by the call that made the change, so that it costs no trip of its own. A server that may not
-- publish (an ACL without channels) must not fail here, with everything written.
local function ring()
  local queues = {}
  for queue in pairs(news.queues) do queues[#queues + 1] = queue end
  if #queues + #news.tasks == 0 then return end
  local message = cmsgpack.pack({ news.from, queues, news.tasks, news.endings })
  redis.pcall('PUBLISH', P .. 'onward:bell', message)
end

-- A whole number as text. Formatting one costs as much as writing it, and most are small: so also where a
-- command would take the number itself, which Redis formats each time.
local SMALL, SMALL_EVENTS = {}, {}
for n = 0, 255 do SMALL[n], SMALL[-n], SMALL_EVENTS[n] = n .. '', -n .. '', 'e' .. n end -- there is no `string` yet
local function text(n) return SMALL[n] or string.format('%.0f', n) end

local function key_of(id) return P .. 'onward:task:' .. id end
local function mail_of(id) return P .. 'onward:mail:' .. id end
local function long_of(name, id) return P .. LONG[name] .. id end

local function lane_name(queue, priority, lane) return text(priority) .. ':' .. lane .. ':' .. queue end

local function lane_key(queue, priority, lane, partition)
  local key = P .. 'onward:queue:' .. text(priority) .. ':' .. lane .. ':' .. queue
  return partition and key .. SEP .. partition or key
end

-- Items for a key, in the order given, by one command at the end of the call, which is always the same
-- for this key.
local function later(command, key, item, other)
  local batch = batches[key]
  if not batch then
    batch = { command = command, many = 0 }
    batches[key] = batch
  end
  local many = batch.many + 1
  batch[many] = item
  if other then
    many = many + 1
    batch[many] = other
  end
  batch.many = many
end

local function publish_task(id)
  if news then news.tasks[#news.tasks + 1] = id end
end

local function publish_queue(queue)
  if news then news.queues[queue] = true end
end

-- When to look at a task that is not running, and at one that is; nil: never.
local function set_alarm(id, due_at) alarms[id] = due_at or false end
local function set_lease(id, due_at) leases[id] = due_at or false end

-- To be read from its end: a queue's name may have colons.
local function tally_of(queue, lane, state)
  if BY_LANE[state] then return queue .. ':' .. lane .. ':' .. state end
  return queue .. ':' .. state
end

-- Kept by state, lane and queue: a text made for each task would cost more than all the counting.
local function count(queue, lane, state, change)
  if state == 'queued' then queued[queue] = (queued[queue] or 0) + change end
  if not BY_LANE[state] then lane = '' end
  local lanes = delta[state]
  if not lanes then lanes = {} delta[state] = lanes end
  local queues = lanes[lane]
  if not queues then queues = {} lanes[lane] = queues end
  queues[queue] = (queues[queue] or 0) + change
end

local function batch_key(id) return P .. 'onward:batch:' .. id end

-- Nil: the task was not in this state before, or will not be afterwards.
local function count_batch(batch, from, to)
  if not batched then batched, ended = {}, {} end
  local states = batched[batch]
  if not states then states = {} batched[batch] = states end
  if from then states[from] = (states[from] or 0) - 1 end
  if to then states[to] = (states[to] or 0) + 1 end
  if LIVE[from] and not LIVE[to] then ended[batch] = true end
end

-- How many of its tasks are not over, with what this call has changed.
local function live_in(batch)
  local left, states = 0, batched[batch] or {}
  local stored_ = call('HMGET', batch_key(batch), 'scheduled', 'queued', 'running', 'waiting')
  for at, state in ipairs({ 'scheduled', 'queued', 'running', 'waiting' }) do
    left = left + tonumber(stored_[at] or 0) + (states[state] or 0)
  end
  return left
end

local function add_up_batches()
  for batch, states in pairs(batched) do
    for state, change in pairs(states) do
      if change ~= 0 and put('HINCRBY', batch_key(batch), state, change) == 0 then
        put('HDEL', batch_key(batch), state)
      end
    end
  end
end

local function holders_of(key) return P .. 'onward:holders:' .. key end
local function runners_of(key) return P .. 'onward:runners:' .. key end
-- It runs, and others with its unique key meet it as one that does.
local function run_unique(key, id, place) put('ZADD', runners_of(key), place, id) end

local function debounce_key(key) return P .. 'onward:debounce:' .. key end

local function depth(queue)
  if not stored[queue] then
    local lanes = call('HMGET', P .. 'onward:counts', tally_of(queue, 'primary', 'queued'),
      tally_of(queue, 'retry', 'queued'))
    stored[queue] = tonumber(lanes[1] or 0) + tonumber(lanes[2] or 0)
  end
  return stored[queue] + (queued[queue] or 0)
end

local function add(key, name, change)
  if change ~= 0 and put('HINCRBY', key, name, text(change)) == 0 then put('HDEL', key, name) end
end

local function add_up()
  local key = P .. 'onward:counts'
  for state, lanes in pairs(delta) do
    for lane, queues in pairs(lanes) do
      for queue, change in pairs(queues) do add(key, tally_of(queue, lane, state), change) end
    end
  end
  for type_, queues in pairs(by_type or NONE) do
    for queue, change in pairs(queues) do add(P .. 'onward:occupied:type:' .. type_, queue, change) end
  end
  for hash, names in pairs(occupied or NONE) do
    for name, change in pairs(names) do add(hash, name, change) end
  end
end

-- The same before the end of a call: nothing of what was counted is known from before any more.
local function add_up_now()
  add_up()
  delta, queued, stored, by_type, occupied = {}, {}, {}, nil, nil
end

-- Scores by member; false: it leaves.
local function write_scores(key, scores)
  local set, unset, many, gone = {}, {}, 0, 0
  for member, score in pairs(scores) do
    if score then
      set[many + 1], set[many + 2] = score, member
      many = many + 2
    else
      gone = gone + 1
      unset[gone] = member
    end
  end
  put_all('ZADD', key, set, many)
  put_all('ZREM', key, unset, gone)
end

-- Everything that was put off, and the answer.
local function finish(answer)
  for key, batch in pairs(batches) do put_all(batch.command, key, batch, batch.many) end
  write_scores(P .. 'onward:alarms', alarms)
  write_scores(P .. 'onward:running', leases)
  add_up()
  if batched then add_up_batches() end
  if limits then write_rates() end
  if entering or left then settle_rings() end
  if news then ring() end
  if #faults > 0 then
    write_('LPUSH', P .. 'onward:faults', unpack(faults, 1, math.min(#faults, FAULTS)))
    write_('LTRIM', P .. 'onward:faults', 0, FAULTS - 1)
  end
  return cmsgpack.pack(answer)
end

-- Before anything of this item is written: without a place there is none.
local function take_places(many)
  last = call('INCRBY', P .. 'onward:place', text(many)) - many
  spare = many
end

local function next_place()
  if spare == 0 then take_places(1) end
  spare, last = spare - 1, last + 1
  return last
end

local function event_field(n) return SMALL_EVENTS[n] or 'e' .. text(n) end

-- A note, type and data, as the log has it. The tasks of a call share their notes, and mostly the numbers
-- as well: the text is kept with the note, and made anew only for other numbers.
local function entry_of(note, n, generation)
  if note.n ~= n or note.generation ~= generation then
    note.n, note.generation = n, generation
    note.entry = text(n) .. SEP .. text(generation) .. SEP .. note[1] .. SEP .. stamp .. SEP .. (note[2] or '')
  end
  return note.entry
end

-- Into the log; returns where it stands there. Whether a write that failed was made is looked up.
local function record(id, entry)
  local at = write_('XADD', LOG, '*', 't', id, 'e', entry)
  if type(at) == 'string' then return at end
  note_fault('XADD ' .. LOG, at)
  local newest = write_('XREVRANGE', LOG, '+', '-', 'COUNT', 1)[1]
  if newest and newest[2][2] == id and newest[2][4] == entry then return newest[1] end
  return put('XADD', LOG, '*', 't', id, 'e', entry) or '0-0'
end

-- Into `flat`, behind the `at` values that it has: the fields of a task's next events, counted on from
-- `have`. Returns how many values it has now.
local function write_events(flat, at, id, have, generation, notes)
  local n = have
  for turn = 1, #notes do
    n = n + 1
    flat[at + 1], flat[at + 2] = event_field(n), record(id, entry_of(notes[turn], n, generation))
    at = at + 2
  end
  flat[at + 1], flat[at + 2] = 'events', text(n)
  return at + 2
end

-- The id behind which a task goes back to the place it was claimed from: of those at the head that
-- stood before it, the last. Nil: it is the first.
local function find_predecessor(list, id, place)
  local behind
  for _, other in ipairs(call('LRANGE', list, 0, 255)) do
    if other ~= id then
      if tonumber(call('HGET', key_of(other), 'place') or 0) > place then break end
      behind = other
    end
  end
  return behind
end

-- A payload or result as its field holds it: a long one has a key of its own, which is written.
local function put_long(id, name, value)
  if #value <= SHORT then return value end
  put('SET', long_of(name, id), value)
  return ''
end

-- Into `flat`, behind the `at` values that it has: names and values as HSET takes them, but for those
-- that may be long. Returns how many values it has now, and those.
local function flatten(flat, at, fields)
  local long
  for name, value in pairs(fields) do
    if LONG[name] then
      long = long or {}
      long[name] = value
    elseif value and name ~= 'id' then
      flat[at + 1], flat[at + 2] = name, value == true and 1 or value
      at = at + 2
    end
  end
  return at, long
end

-- `had` is what they were, from `from` on: false for a field that is not there. `there` is a table to use.
local function unset_fields(key, id, names, had, from, there)
  local many = 0
  for at = 1, #names do
    if had[from + at - 1] then
      local name = names[at]
      many = many + 1
      there[many] = name
      if LONG[name] then put('DEL', long_of(name, id)) end
    end
  end
  put_all('HDEL', key, there, many)
end

local function long_field(id, name, inline)
  if inline == '' then return call('GET', long_of(name, id)) or nil end
  return inline or nil
end

local function number(value) return value and tonumber(value) or nil end

local function least(a, b, c, d)
  local nearest = a or FOREVER
  if b and b < nearest then nearest = b end
  if c and c < nearest then nearest = c end
  if d and d < nearest then nearest = d end
  return nearest
end

local function letters_of(id)
  local flat, letters = call('LRANGE', mail_of(id), 0, -1), {}
  for at = 1, #flat, 2 do letters[#letters + 1] = { flat[at], flat[at + 1] } end
  return letters
end
