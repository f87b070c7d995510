-- Functions of the engine's own whose parameters are others now; calls that are under way end with what
-- they began with.

-- Keys are checked all in one call: dever.check_keys.
-- lock: none
drop function dever.check_key(text);

-- Says where the rows lie, too.
-- lock: none
drop function dever.hold(bigint[], bigint[]);

-- Takes places instead of ids, and says how many rows it moved.
-- lock: none
drop function dever.finish(bigint[], text, text[], text[]);
