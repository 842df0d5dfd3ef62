/*
 * lost.pml
 *		Lost attempts, for exhaustive checking with spin: two sessions, a poison
 *		operation that may fail by its own fault whenever it was begun, a good one
 *		that only the server fails, savepoints in the first session, transactions
 *		that the second one prepares, releases, idem_forget and a clock.
 *
 * What is counted is compared with what was really lost since the operation's
 * last end, release or forgetting.
 *
 * -DCOUNT_LATE and others take a guard out, and must fail: see run
 */

#define LIMIT	2
#define POISON	0
#define GOOD	1

/* What is checked: both, or with -DONLY_L1 or -DONLY_L2 one of them. */
#if !defined(ONLY_L1) && !defined(ONLY_L2)
#define ONLY_L1
#define ONLY_L2
#endif
#ifdef ONLY_L1
#define CHECK_L1	assert(lost[k] < LIMIT)
#else
#define CHECK_L1	skip
#endif
#ifdef ONLY_L2
#define CHECK_L2	assert(lost[k] >= LIMIT)
#else
#define CHECK_L2	skip
#endif

bit ended[2];					/* the operation has a record, COMPLETED or FAILED */
byte count[2];					/* in shared memory: lost_attempts.c */
byte lost[2];					/* for the checks: the truth */

/* own[k]: where a transaction stands with an operation */
#define NOTHING		0
#define PENDING		1
#define RELEASED	2			/* the lock went at once */
/* from here on it writes the record, and has the lock until it ends */
#define ENDS		3			/* by its owner */
#define ENDS_LOST	4			/* by the limit */
#define REMOVES		5			/* idem_forget */
#define HAS_LOCK(o)	(o == PENDING || o >= ENDS)

/* at: where a session is */
#define IDLE		0
#define OPEN		1
#define ASKED		2			/* begin: has asked for the lock of key */
#define LOCKED		3			/* ... and has it, and has not looked yet */
#define FAILED		4			/* an error has ended the savepoint, and the client knows */
#define ABORTED		5			/* rolled back, and something is left to do */
#define VISIBLE		6			/* committed, and something is left to do */

typedef Session {
	byte at;
	byte key;
	byte seen;					/* only with LOOK_FIRST: the count */
	byte own[2];
	bit forgets[2];				/* its commit does: transaction.c, forget_lost_attempts */
	byte begun;					/* rollback.c: 0, 1 + k, or 3 for several */
	bit excused;
	bit saved;					/* a savepoint is set */
	byte before[2];				/* ... and own was this */
	bit forgot[2];				/* ... and forgets */
	/* for the checks */
	byte began;					/* bits */
	bit faulty;					/* the last error was the operation's fault */
	bit counts;					/* only with COUNT_LATE */
};
Session s[2];

/* the rows and locks of a prepared transaction */
byte prepared[2];
bit is_prepared;

#define ME			s[me]
#define OTHER		s[1 - me]
#define MAY_SAVE	(me == 0)
#define MAY_PREPARE	(me == 1)
#define HOLDS(n)	(HAS_LOCK(s[n].own[k]) || (s[n].at == LOCKED && s[n].key == k))
#define IS_FREE		(!HOLDS(0) && !HOLDS(1) && prepared[k] == NOTHING)

inline forget(k)
{
	count[k] = 0
}

/* begin.c, forget_if_ended */
#ifdef REPLAY_KEEPS
#define FORGET_BY_REPLAY	skip
#else
#define FORGET_BY_REPLAY	forget(k)
#endif

/* -- begin.c -------------------------------------------------------------- */

/* rollback.c, rollback_note_begin */
inline note_begin(k)
{
	ME.began = ME.began | (1 << k);
#ifdef COUNT_BATCH
	ME.begun = 1 + k
#else
	if
	:: ME.begun == 0 || ME.begun == 1 + k -> ME.begun = 1 + k; ME.excused = 0
	:: else -> ME.begun = 3
	fi
#endif
}

/* release.c, release_owned; rollback.c, rollback_note_release: the begin is taken back */
inline note_release(k)
{
	if
	:: ME.began == (1 << k) -> ME.began = 0
	:: else
	fi;
#ifndef RELEASE_COUNTS
	if
	:: ME.begun == 1 + k -> ME.begun = 0
	:: else
	fi
#endif
}

#ifdef LOOK_FIRST
#define LOOK		ME.seen = count[k]
#define COUNTED		ME.seen
#else
#define LOOK		skip
#define COUNTED		count[k]
#endif

#define MAY_BEGIN	((ME.at == IDLE || ME.at == OPEN) && ME.own[k] == NOTHING)

proctype Operation(byte me; byte k)
{
end:
	do
	/* try_begin with the lock: at once, or from its queue */
	:: d_step { MAY_BEGIN ->
		ME.at = ASKED; ME.key = k; LOOK }
	:: d_step { ME.at == ASKED && ME.key == k && IS_FREE ->
		ME.at = LOCKED }

	/* decide and carry_out, after one look under the lock */
	:: d_step { ME.at == LOCKED && ME.key == k ->
		if
		:: ended[k] -> lost[k] = 0; FORGET_BY_REPLAY
		:: !ended[k] && COUNTED >= LIMIT ->
			CHECK_L2;
			ME.own[k] = ENDS_LOST;
			ME.forgets[k] = 1
		:: else ->
			CHECK_L1;
			ME.own[k] = PENDING;
			note_begin(k)
		fi;
		ME.at = OPEN; ME.key = 0; ME.seen = 0 }

	/* try_begin without the lock */
	:: d_step { MAY_BEGIN && ended[k] ->
		lost[k] = 0; FORGET_BY_REPLAY;
		ME.at = OPEN }

	/* the same after its own end */
	:: d_step { ME.at == OPEN && (ME.own[k] == ENDS || ME.own[k] == ENDS_LOST) ->
#ifdef REPLAY_FORGETS_OWN
		forget(k);
#endif
		skip }

	/* end.c, end_owned; operation.c, handle_note_end */
	:: d_step { ME.at == OPEN && ME.own[k] == PENDING ->
		ME.own[k] = ENDS;
#ifdef FORGET_EARLY
		ME.forgets[k] = (count[k] > 0);
#else
		ME.forgets[k] = 1;
#endif
#ifdef FORGET_AT_ONCE
		forget(k);
#endif
		skip }

	/* release.c, release_owned: what others lose from here on counts, if there was nothing */
	:: d_step { ME.at == OPEN && ME.own[k] == PENDING && !ME.saved ->
		ME.own[k] = RELEASED;
		ME.forgets[k] = (count[k] > 0);
		note_release(k) }

	/* release.c, operation_forget */
	:: d_step { MAY_BEGIN && ended[k] && IS_FREE ->
		ME.own[k] = REMOVES; ME.at = OPEN;
		ME.forgets[k] = 1 }
	od
}

/* -- rollback.c ----------------------------------------------------------- */

/* An operation of its own can fail the transaction, by an error or the client's ROLLBACK. */
#define IS_POISONED		(ME.began & (1 << POISON))
#define IS_ONE			(ME.began == 1 || ME.began == 2)
#define THE_ONE			(ME.began - 1)

inline add()
{
	if
	:: ME.begun > 0 && ME.begun < 3 -> count[ME.begun - 1]++
	:: else
	fi
}

#ifdef NOT_EXCUSED
#define IS_EXCUSED		false
#else
#define IS_EXCUSED		ME.excused
#endif
#ifdef COUNT_SERVER
#define IS_FAULT(f)		true
#else
#define IS_FAULT(f)		(f)
#endif

/* The callback of the abort: rollback_count and is_lost. */
inline abort(own_fault, counted)
{
	if
	:: own_fault && IS_ONE -> lost[THE_ONE]++
	:: else
	fi;
#ifdef COUNT_LATE
	ME.counts = counted;
	give_up()
#else
	if
	:: counted -> add()
	:: else
	fi
#endif
	ME.at = ABORTED
}

inline give_up()
{
	ME.own[0] = NOTHING; ME.own[1] = NOTHING
}

inline forget_transaction()
{
	give_up();
	ME.at = IDLE; ME.key = 0; ME.seen = 0;
	ME.forgets[0] = 0; ME.forgets[1] = 0;
	ME.begun = 0; ME.excused = 0;
	ME.saved = 0; ME.before[0] = 0; ME.before[1] = 0; ME.forgot[0] = 0; ME.forgot[1] = 0;
	ME.began = 0; ME.faulty = 0; ME.counts = 0
}

/* An error after the savepoint ends that; savepoint.c, savepoint_undo; rollback_note_savepoint */
inline fail_savepoint(own_fault)
{
	ME.own[0] = ME.before[0]; ME.own[1] = ME.before[1];
	ME.forgets[0] = ME.forgot[0]; ME.forgets[1] = ME.forgot[1];
	ME.at = FAILED; ME.key = 0; ME.seen = 0;
	ME.faulty = own_fault;
#ifdef COUNT_SAVEPOINT
	if
	:: IS_FAULT(own_fault) -> add()
	:: else
	fi;
#endif
#ifdef SAVEPOINT_FORGETS
	if
	:: ME.begun > 0 && ME.begun < 3 && ME.own[ME.begun - 1] == NOTHING -> ME.begun = 0
	:: else
	fi;
#endif
	if
	:: ME.begun > 0 && ME.begun < 3 -> ME.excused = !(own_fault)
	:: else
	fi
}

#define IN_TRANSACTION	(ME.at >= OPEN && ME.at <= LOCKED)
#define IS_UNFINISHED	(ME.own[0] == PENDING || ME.own[1] == PENDING)

inline commit_key(k)
{
	if
	:: ME.own[k] == ENDS || ME.own[k] == ENDS_LOST -> ended[k] = 1; lost[k] = 0
	:: ME.own[k] == REMOVES -> ended[k] = 0; lost[k] = 0
	:: else
	fi
}

inline forget_at_end(k)
{
	if
	:: ME.forgets[k] -> forget(k); lost[k] = 0
	:: else
	fi
}

proctype Transaction(byte me)
{
end:
	do
	:: d_step { MAY_SAVE && ME.at == OPEN && !ME.saved ->
		ME.saved = 1;
		ME.before[0] = ME.own[0]; ME.before[1] = ME.own[1];
		ME.forgot[0] = ME.forgets[0]; ME.forgot[1] = ME.forgets[1];
		ME.excused = 0 }
	/* RELEASE SAVEPOINT; savepoint.c, savepoint_hand_over */
	:: d_step { ME.at == OPEN && ME.saved ->
		ME.saved = 0; ME.before[0] = 0; ME.before[1] = 0; ME.forgot[0] = 0; ME.forgot[1] = 0 }

	/* an error of the operation, or of the server */
	:: d_step { IN_TRANSACTION && ME.saved && IS_POISONED -> fail_savepoint(1) }
	:: d_step { IN_TRANSACTION && ME.saved -> fail_savepoint(0) }
	:: d_step { IN_TRANSACTION && !ME.saved && IS_POISONED -> abort(1, !IS_EXCUSED) }
	:: d_step { IN_TRANSACTION && !ME.saved -> abort(0, IS_FAULT(false)) }

	/* ROLLBACK TO, which sets the savepoint anew */
	:: d_step { ME.at == FAILED ->
		ME.at = OPEN; ME.faulty = 0;
#ifndef EXCUSE_KEPT
		ME.excused = 0;
#endif
		skip }
	/* ROLLBACK: the error that came before is not known any more */
	:: d_step { ME.at == FAILED -> abort(ME.faulty, !IS_EXCUSED) }

	/* ResourceOwnerRelease of AbortTransaction */
	:: d_step { ME.at == ABORTED ->
#ifdef COUNT_LATE
		if
		:: ME.counts -> add()
		:: else
		fi;
#endif
		forget_transaction() }

	/* ProcArrayEndTransaction; XACT_EVENT_COMMIT; the locks */
	:: d_step { ME.at == OPEN && !IS_UNFINISHED ->
		commit_key(0); commit_key(1);
		ME.at = VISIBLE;
#ifdef FORGET_LATE
		give_up();
#endif
		skip }
	:: d_step { ME.at == VISIBLE ->
		forget_at_end(0); forget_at_end(1);
		forget_transaction() }

	/* XACT_EVENT_PREPARE */
	:: d_step { MAY_PREPARE && ME.at == OPEN && !IS_UNFINISHED && !is_prepared ->
		is_prepared = 1;
		prepared[0] = (HAS_LOCK(ME.own[0]) -> ME.own[0] : NOTHING);
		prepared[1] = (HAS_LOCK(ME.own[1]) -> ME.own[1] : NOTHING);
#ifdef PREPARE_KEEPS
		lost[0] = (ME.forgets[0] -> 0 : lost[0]); lost[1] = (ME.forgets[1] -> 0 : lost[1]);
#else
		forget_at_end(0); forget_at_end(1);
#endif
		forget_transaction() }
	od
}

inline commit_prepared(k)
{
	if
	:: prepared[k] == REMOVES -> ended[k] = 0
	:: prepared[k] == ENDS || prepared[k] == ENDS_LOST -> ended[k] = 1
	:: else
	fi;
	prepared[k] = NOTHING
}

/* COMMIT PREPARED and ROLLBACK PREPARED, in a session that knows nothing; and a record expires. */
proctype Others()
{
end:
	do
	:: d_step { is_prepared -> commit_prepared(0); commit_prepared(1); is_prepared = 0 }
	:: d_step { is_prepared -> prepared[0] = NOTHING; prepared[1] = NOTHING; is_prepared = 0 }
	:: d_step { ended[POISON] -> ended[POISON] = 0 }
	:: d_step { ended[GOOD] -> ended[GOOD] = 0 }
	od
}

init {
	atomic {
		run Operation(0, 0); run Operation(0, 1); run Transaction(0);
		run Operation(1, 0); run Operation(1, 1); run Transaction(1);
		run Others()
	}
}
