/*
 * settings.h
 *		Every setting of the extension.
 */
#ifndef IDEM_SETTINGS_H
#define IDEM_SETTINGS_H

extern bool setting_accept_clear_responses;
extern int	setting_end_wait;	/* milliseconds */
extern int	setting_gc_batch_size;	/* rows */
extern char *setting_gc_databases;
extern bool setting_gc_enabled;
extern int	setting_gc_interval;	/* seconds */
extern int	setting_lost_attempts_tracked;	/* operations; 0: nobody counts */
extern int	setting_max_attempts;	/* 0: no limit */
extern int	setting_max_lost_attempts;	/* 0: no limit */
extern int	setting_max_operations; /* per transaction */
extern int	setting_max_response_size;	/* bytes */
extern int	setting_retention;	/* seconds */
extern char *setting_seal_key_file;

extern void settings_define(void);

#endif							/* IDEM_SETTINGS_H */
