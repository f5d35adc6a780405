/* What the sources share: the card that they stand in for. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

typedef struct {
    int major, minor;             /* compute capability */
    int multiprocessors;
    int threads;                  /* resident on one multiprocessor */
    int blocks;                   /* resident on one multiprocessor */
    size_t shared_multiprocessor; /* bytes of shared memory */
    size_t shared_opt_in;         /* bytes of it that one block may ask for */
    size_t l2_cache;
    size_t bytes;                 /* the memory that the card reports; 0 when no card is named */
    size_t context;               /* what of it PyTorch cannot have */
    char name[64];
} Card;

extern Card card;

/* Tell whether an address lies in the card's memory, and in which allocation. */
bool find_on_card(const void *address, void **start, size_t *bytes);

/* A zeroed block that a library's handle points to. PyTorch never looks into it. */
void *new_handle(void);
