/* Compiled language models in C programs.
 *
 * Link the runtime's archive (libweir_runtime.a) with -lpthread -ldl -lm. A model is opened from
 * the file that `weir compile` wrote, or linked into the program (`weir compile --emit lib`).
 *
 * Every function that returns int returns 0 (WEIR_OK) or a code; weir_last_error() then has the
 * message. A model may be used by several threads at once, an engine by one at a time.
 */
#ifndef WEIR_H
#define WEIR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    WEIR_OK = 0,       /* Done. */
    WEIR_ERROR = 1,    /* The file, the system or the model failed. */
    WEIR_INVALID = 2,  /* The call or its options are wrong. */
    WEIR_INTERNAL = 3  /* A bug in the runtime. */
};

typedef struct weir_model_handle weir_model_t;
typedef struct weir_engine_handle weir_engine_t;

/* How an engine runs; zeros (or a null pointer) are the defaults. */
typedef struct weir_options {
    uint32_t slots;   /* Sequences at once; 0: what the model was compiled for. */
    uint32_t threads; /* Compute threads, the caller's included; 0: one per core. */
} weir_options_t;

/* How one answer is made. Fill it with weir_request_defaults() first. */
typedef struct weir_request {
    float temperature;        /* 0: always the most likely token. */
    float top_p;              /* 1: all tokens. */
    float min_p;              /* 0: all tokens. */
    float repetition_penalty; /* 1: none. */
    float presence_penalty;   /* 0: none. */
    float frequency_penalty;  /* 0: none. */
    uint32_t top_k;           /* 0: all tokens. */
    uint32_t max_tokens;      /* 0: what the model's context allows. */
    uint64_t seed;
    uint32_t choice;          /* Number of this answer among several to one prompt. */
    uint32_t ignore_eos;      /* Not 0: go on after the model's end token. */
    const char *const *stop;  /* Texts that end the answer; only read by weir_engine_submit(). */
    size_t stop_count;
} weir_request_t;

enum {
    WEIR_EVENT_NONE = 0,     /* Nothing waits or runs. */
    WEIR_EVENT_TOKEN = 1,    /* A token was chosen. */
    WEIR_EVENT_FINISHED = 2, /* The answer is complete; text is what had been held back. */
    WEIR_EVENT_FAILED = 3    /* The request failed; text is the message. */
};

enum { WEIR_STOP = 1, WEIR_LENGTH = 2, WEIR_CANCELLED = 3 };

typedef struct weir_event {
    uint64_t request;           /* Id from weir_engine_submit(). */
    uint32_t kind;              /* WEIR_EVENT_... */
    uint32_t token;             /* Of WEIR_EVENT_TOKEN. */
    const char *text;           /* UTF-8, whole characters, zero-terminated; valid until the next
                                   call with this engine. */
    size_t text_bytes;
    uint32_t finish_reason;     /* Of WEIR_EVENT_FINISHED, as are the counts below. */
    uint32_t prompt_tokens;
    uint32_t completion_tokens;
    uint32_t kv_rows_kept;
    uint32_t kv_rows_dropped;
    uint32_t reused_tokens;     /* Of the prompt: an earlier request had left their rows. */
} weir_event_t;

/* Message of this thread's last failed call; valid until its next failed one. */
const char *weir_last_error(void);

/* Opens a compiled file, which must not change while it is in use. */
int weir_model_open(const char *path, weir_model_t **model);

/* Takes a model that was linked into this program: the address of its symbol. */
int weir_model_linked(const void *symbol, weir_model_t **model);

/* Frees a model; engines made from it stay valid. Null is ignored. */
void weir_model_free(weir_model_t *model);

/* Token ids of a text. `count` becomes their number, also when `capacity` is 0. */
int weir_model_encode(const weir_model_t *model, const char *text, uint32_t *ids, size_t capacity,
                      size_t *count);

/* Bytes that a program with such an engine uses at most. */
int weir_model_memory_ceiling(const weir_model_t *model, const weir_options_t *options,
                              uint64_t *bytes);

/* The model's own defaults. */
int weir_request_defaults(const weir_model_t *model, weir_request_t *request);

/* Makes an engine. An error if the model gives embeddings: this interface is for text. */
int weir_engine_new(const weir_model_t *model, const weir_options_t *options,
                    weir_engine_t **engine);

/* Frees an engine and ends its threads. Null is ignored. */
void weir_engine_free(weir_engine_t *engine);

/* Queues a request; a null `request` is greedy. */
int weir_engine_submit(weir_engine_t *engine, const uint32_t *prompt, size_t prompt_tokens,
                       const weir_request_t *request, uint64_t *id);

/* Ends a request early; a WEIR_EVENT_FINISHED follows, unless it has ended already. */
int weir_engine_cancel(weir_engine_t *engine, uint64_t id);

/* The next event of any request, computed if need be. */
int weir_engine_next(weir_engine_t *engine, weir_event_t *event);

#ifdef __cplusplus
}
#endif

#endif
