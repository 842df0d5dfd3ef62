/*
 * gc.h
 *		Collects records that have expired.
 */
#ifndef GC_H
#define GC_H

#include "postgres.h"

extern int64 gc_sweep(int64 max_rows);
extern int64 gc_sweep_if_installed(int64 max_rows);

#endif							/* GC_H */
