/*
 * rollback.h
 *		Which rollbacks lose an attempt.
 */
#ifndef IDEM_ROLLBACK_H
#define IDEM_ROLLBACK_H

#include "postgres.h"

#include "access/xact.h"

extern void rollback_note_begin(uint64 id, int32 limit);
extern void rollback_note_release(uint64 id);
extern void rollback_note_savepoint(SubXactEvent event);
extern void rollback_count(void);
extern void rollback_forget(void);
extern void rollback_register(void);

#endif							/* IDEM_ROLLBACK_H */
