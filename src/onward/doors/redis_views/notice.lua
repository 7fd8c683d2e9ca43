#!lua flags=allow-oom
-- Once a second: the numbers, what others have put into the lists, and which tasks to look at again.
--
-- KEYS[1] is the prefix; ARGV[1] the number of the one server that may write; ARGV[2] as msgpack
-- `lists` (to look into), `counts` (hashes, by name, whole), `seen` (ids that were looked at, with the
-- instants that they were asked for) and `page` (how many of each to return). An id that no view put into a list is taken out of it and
-- kept in onward:view:adopting (list: the instant, the list and the id) until it was adopted. Only the
-- ends of a list are read: that is where others push. Returns what waits there, the tasks to look at
-- with their instants, and the names that held something foreign; -1: another server writes by now.
local P, REQUEST = KEYS[1], cmsgpack.unpack(ARGV[2])
local PLACES, LOOK, SEP = P .. 'onward:view:places', P .. 'onward:view:look', '\31'
local ADOPTING = P .. 'onward:view:adopting'
local KEPT_MS = 7 * 24 * 3600 * 1000
local END, MOST, LAST = 32, 512, REQUEST.page - 1
local aside = {}
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

local function holds(name, type_)
  local found = redis.call('TYPE', P .. name).ok
  if found == type_ then return true end
  if found ~= 'none' then
    local kept = P .. 'onward:set-aside:' .. name
    redis.call('RENAME', P .. name, kept)
    redis.call('PEXPIRE', kept, KEPT_MS)
    aside[#aside + 1] = name
  end
  return false
end

local function write_counts(name, flat)
  holds(name, 'hash')
  redis.call('DEL', P .. name)
  redis.call('HSET', P .. name, unpack(flat))
end

-- By id, which of these no view put into this list.
local function strange(name, ids)
  local places, found = redis.call('HMGET', PLACES, unpack(ids)), {}
  for at, id in ipairs(ids) do
    local place = places[at]
    found[at] = not place or string.sub(place, string.find(place, SEP, 1, true) + 1) ~= name
  end
  return found
end

-- At one end (1: the head, -1: the tail), as far as it is foreign, in the order of the list.
local function take(name, count)
  local window, ids, foreign = END / 2
  repeat
    window = window * 2
    if count == 1 then ids = redis.call('LRANGE', P .. name, 0, window - 1)
    else ids = redis.call('LRANGE', P .. name, -window, -1) end
    if #ids == 0 then return end
    foreign = strange(name, ids)
  until window >= MOST or #ids < window or not foreign[count == 1 and window or 1]
  for at, id in ipairs(ids) do
    if foreign[at] then
      redis.call('LREM', P .. name, count, id)
      redis.call('RPUSH', ADOPTING, now .. SEP .. name .. SEP .. id)
    end
  end
end

if redis.call('GET', P .. 'onward:view:writer') ~= ARGV[1] then return { -1, {}, aside } end
for name, flat in pairs(REQUEST.counts) do write_counts(name, flat) end
for _, name in ipairs(REQUEST.lists) do
  if holds(name, 'list') then
    take(name, 1)
    take(name, -1)
  end
end
for _, pair in ipairs(REQUEST.seen) do
  if redis.call('ZSCORE', LOOK, pair[1]) == pair[2] then redis.call('ZREM', LOOK, pair[1]) end
end
return {
  redis.call('LRANGE', ADOPTING, 0, LAST),
  redis.call('ZRANGEBYSCORE', LOOK, '-inf', now, 'WITHSCORES', 'LIMIT', 0, LAST + 1),
  aside,
}
