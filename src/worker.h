/*
 * worker.h
 *		The background collector.
 */
#ifndef WORKER_H
#define WORKER_H

extern void worker_register(void);

#endif							/* WORKER_H */
