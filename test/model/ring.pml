/*
 * ring.pml
 *		The ring of tables, for exhaustive checking with spin: two sessions that
 *		want one key, two tables of the ring beside the store, collection that
 *		empties tables, an owner who makes and drops the second table and puts
 *		the row where it does not belong, and a clock.
 *
 * A step names the function of src/ that it stands for.  A session learns of changes
 * only where it accepts invalidations: when it locks a table, and in the look-up.
 *
 * -DNO_ACCEPT and others take a step out, and must fail: see run
 */

/* the row in each table: 0 is the store */
#define NONE	0
#define LIVE	1
#define EXPIRED	2
byte row[3];
byte effects;					/* since the key was new, or had expired */
bit acknowledged;				/* a client has the answer, and it has not expired */

byte target;					/* the table whose range has new rows; 0: none */
bit exists;						/* table 2 inherits from the store */
bit has_range;					/* ... and may be a target */
bit leaving;					/* ... and is to be dropped */
byte waits;						/* ... sessions that have to end before (bits) */

byte owner;						/* of the operation's lock: 0, or 1 + session */
byte emptying;					/* table that collection has, or 0 */
bit shares;						/* it keeps writers out */
bit excludes;					/* it keeps readers out, too */

typedef Session {
	bit open;					/* in a transaction: it holds the store */
	bit invalidated;			/* and it has not read the catalog since */
	bit accepted;				/* ... and has accepted: catalog.c, catalog_is_stale */
	bit knows;					/* of table 2 */
	byte target;				/* as it knows it */
	byte seen[3];				/* its snapshot */
	byte reads;					/* the table that it has locked to read, 1 + t */
	byte writes;				/* ... to write, 1 + t, until its transaction ends */
};
Session s[2];

#define ME			s[me]
#define BIT			(1 << me)
#define COUNT(x)	((row[0] == x) + (row[1] == x) + (row[2] == x))
#define ROWS		((row[0] != NONE) + (row[1] != NONE) + (row[2] != NONE))
#define CHECK_ROWS	assert(ROWS <= 1); assert(!acknowledged || COUNT(LIVE) == 1)

/* catalog.c, catalog_open; store_tables.c, store_tables_read_ring */
inline learn()
{
	ME.invalidated = 0; ME.accepted = 0; ME.knows = exists; ME.target = target
}

inline invalidate_all()
{
	s[0].invalidated = 1; s[1].invalidated = 1
}

#ifdef STORE_LEFT_OUT
#define TABLES	2
#else
#define TABLES	3
#endif
#ifdef BY_RANGE_READ
#define PASSED_OVER(t)	(t != 0 && t != ME.target)
#else
#define PASSED_OVER(t)	false
#endif
#define TABLE_AT(i)		(i == 2 -> 0 : 2 - i)
#define READ_LOCKED(t)	(emptying == t && t != 0 && excludes)
#define WRITE_LOCKED(t)	(emptying == t && t != 0 && (shares || excludes))

proctype Operation(byte me)
{
	byte i, t, position, found;
end:
	do
	:: d_step { !ME.open -> ME.open = 1; learn() };
		/* advisory_lock.c, lock_acquire_within */
		d_step { owner == 0 -> owner = 1 + me };
look:	/* store_kind.c, kind_find: the list */
		atomic {
#ifndef NO_ACCEPT
			learn();
#endif
			i = 0; position = 3; found = NONE };
		/* ... and one snapshot, which is not older */
		d_step { ME.seen[0] = row[0]; ME.seen[1] = row[1]; ME.seen[2] = row[2] };
		/* store_kind.c, find_in_ring */
		do
		:: d_step { i < TABLES && found != LIVE -> t = TABLE_AT(i) };
			if
			:: d_step { (t == 2 && !ME.knows) || PASSED_OVER(t) -> i++ }
			:: d_step { t == 0 ->
#ifdef SNAPSHOT_EACH
				ME.seen[0] = row[0];
#endif
				if
				:: ME.seen[0] != NONE -> found = ME.seen[0]; position = 0
				:: else
				fi; i++ }
			/* direct.c, direct_is_empty, without a lock: a file that has a row that the snapshot sees has pages, or is gone */
			:: d_step { t != 0 && !(t == 2 && !ME.knows) && !PASSED_OVER(t) && (ME.seen[t] == NONE || ME.invalidated) -> i++ }
			/* direct.c, open_to_read */
			:: d_step { t != 0 && !(t == 2 && !ME.knows) && !PASSED_OVER(t) && !READ_LOCKED(t) ->
				ME.reads = 1 + t; ME.accepted = ME.invalidated };
				d_step {
#ifdef SNAPSHOT_EACH
				ME.seen[t] = row[t];
#endif
				if
				:: ME.seen[t] != NONE -> found = ME.seen[t]; position = t
				:: else
				fi; ME.reads = 0; i++ }
			fi
		:: d_step { !(i < TABLES && found != LIVE) -> t = 0 }; break
		od;
#ifndef NO_ACCEPT_AFTER
		/* store_kind.c, find_with_snapshot */
		atomic { ME.accepted = ME.accepted || ME.invalidated };
#endif
#ifndef NO_SECOND_LOOK
		if
		:: ME.accepted -> goto look
		:: else
		fi;
#endif
		if
		:: atomic { found == LIVE -> acknowledged = (COUNT(LIVE) > 0); goto done }
		:: else
		fi;
		/* store_kind.c, kind_lock_target */
lock:	atomic { !WRITE_LOCKED(ME.target) -> ME.writes = 1 + ME.target; ME.accepted = (ME.accepted || (ME.invalidated && ME.target != 0)) };
#ifndef NO_REPEAT
		if
		:: atomic { ME.accepted && ME.writes != 1 -> ME.writes = 0; learn(); goto lock }
		:: else
		fi;
#endif
		/* store.c, put_directly; store_kind.c, kind_leave_other_table; the commit; its answer */
		d_step { position == 3 || !WRITE_LOCKED(position) ->
#ifndef LEAVE_THE_OLD
			if
			:: position < 3 && row[position] == EXPIRED -> row[position] = NONE
			:: else
			fi;
#endif
			t = ME.writes - 1;
			if
			:: t == 2 && !exists
			:: else -> row[t] = LIVE
			fi;
			effects++; acknowledged = 1;
			assert(effects <= 1);
			CHECK_ROWS };
done:	atomic { ME.writes = 0; ME.open = 0; owner = 0; waits = waits & (3 - BIT);
			i = 0; t = 0; position = 0; found = NONE;
			ME.seen[0] = NONE; ME.seen[1] = NONE; ME.seen[2] = NONE }
	od
}

#define USES(n, t)	(s[n].reads == 1 + t || s[n].writes == 1 + t)
#define IN_USE(t)	(USES(0, t) || USES(1, t))
#define WRITTEN(t)	(s[0].writes == 1 + t || s[1].writes == 1 + t)
#ifdef BY_RANGE_ONLY
#define MAY_EMPTY(t)	(t != target)
#else
#define MAY_EMPTY(t)	(row[t] != LIVE)
#endif

#ifdef NO_WAIT_TO_DROP
#define MAY_DROP	true
#else
#define MAY_DROP	(waits == 0)
#endif

/* rotation.c, try_rotation.  A lock that is not free: the next time. */
proctype Collection()
{
	bit fits;
	byte t;
end:
	do
	:: atomic { emptying == 0 ->
		if
		:: t = 1
		:: exists -> t = 2
		fi;
		emptying = t };
		/* rotation.c, lock_out_writers */
		if
#ifdef NO_SHARE
		:: true
#else
		:: d_step { !WRITTEN(t) -> shares = 1 }
#endif
		:: WRITTEN(t) -> goto over
		fi;
		/* bulk.c, bulk_content */
		fits = MAY_EMPTY(t);
		/* rotation.c, empty_or_drop: the lock, and what COMMIT makes visible */
		if
		:: d_step { fits && !IN_USE(t) -> excludes = 1 };
			atomic {
			row[t] = NONE;
			if
			:: t == 2 && leaving && MAY_DROP ->
				exists = 0; leaving = 0; waits = 0;
				if
				:: target == 2 -> target = 0
				:: else
				fi
			:: else ->
				if
				:: target = 1
				:: has_range -> target = 2
				:: target = 0
				fi
			fi;
			invalidate_all(); CHECK_ROWS }
		:: !fits || IN_USE(t)
		fi;
over:	atomic { emptying = 0; shares = 0; excludes = 0; fits = 0; t = 0 }
	od
}

#ifdef NO_WAIT
#define MAY_HAVE_RANGE	true
#else
#define MAY_HAVE_RANGE	(waits == 0)
#endif
#define OPEN_NOW	(s[0].open + 2 * s[1].open)
#define HAS(t)		(t != 2 || exists)
#define ROW_AT		(row[0] != NONE -> 0 : (row[1] != NONE -> 1 : 2))

/* The owner, a restore or a subscriber: none of them takes the operation's lock. */
proctype Owner()
{
	byte t;
end:
	do
	/* idem_partition_store and its COMMIT; rotation.c, change_ring: the set of transactions */
	:: d_step { !exists && emptying == 0 -> exists = 1; leaving = 0; has_range = 0;
		waits = OPEN_NOW; invalidate_all() }
	/* rotation.c, empty_or_drop: the first range */
	:: d_step { exists && !has_range && !leaving && emptying == 0 && MAY_HAVE_RANGE && !IN_USE(2) &&
			row[2] != LIVE ->
		row[2] = NONE; has_range = 1; target = 2; invalidate_all() }
	/* idem_unpartition_store; then emptied, without another range */
	:: d_step { exists && has_range && target != 2 && emptying == 0 ->
		leaving = 1; has_range = 0; waits = OPEN_NOW }
	/* the row is moved by one transaction, to where its expiry does not belong */
	:: atomic { ROWS == 1 && !WRITE_LOCKED(ROW_AT) && (COUNT(LIVE) == 1 || owner == 0) ->
		if
		:: !WRITE_LOCKED(0) -> t = 0
		:: !WRITE_LOCKED(1) -> t = 1
		:: exists && !WRITE_LOCKED(2) -> t = 2
		fi;
		if
		:: COUNT(LIVE) == 1 -> row[0] = NONE; row[1] = NONE; row[2] = NONE; row[t] = LIVE
		:: else -> row[0] = NONE; row[1] = NONE; row[2] = NONE; row[t] = EXPIRED
		fi; t = 0 }
	/* UPDATE ... SET expires_at */
	:: d_step { COUNT(EXPIRED) == 1 && owner == 0 && !WRITE_LOCKED(ROW_AT) -> row[ROW_AT] = LIVE }
	od
}

proctype Clock()
{
end:
	do
	:: d_step { COUNT(LIVE) == 1 -> row[ROW_AT] = EXPIRED; effects = 0; acknowledged = 0 }
	/* a range ends: no session gets an invalidation */
	:: d_step { target != 0 -> target = 0 }
	od
}

init {
	atomic {
		target = 1;
		run Operation(0); run Operation(1); run Collection(); run Owner(); run Clock()
	}
}
