/* trail-rt: engine, scheduler and probe for C and C++.
 *
 * Made by cbindgen from the sources of the crate trail-capi: edit these.
 *
 * Pointers: one that is not NULL is to as many values as its description says, aligned, and
 * nothing changes them during the call. A text ends in a zero byte and is UTF-8. Handles are
 * opaque; each is closed once, by its own function, when no other call uses it. Several threads
 * may use a handle at once, unless its description says one.
 *
 * Errors: what returns a TrailStatus writes its results on TRAIL_STATUS_OK alone;
 * trail_last_error() has the reason otherwise. No call ends the process or throws. */

#ifndef TRAIL_RT_H
#define TRAIL_RT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 Result of a call.
 */
typedef enum TrailStatus {
  /*
   Done.
   */
  TRAIL_STATUS_OK = 0,
  /*
   An argument, an option or a request is invalid, or a call does not fit the state of its
   handle.
   */
  TRAIL_STATUS_ARGUMENT = 1,
  /*
   A model, a probe or another file cannot be used.
   */
  TRAIL_STATUS_MODEL = 2,
  /*
   The engine is full or broke down: the request may be tried again.
   */
  TRAIL_STATUS_ENGINE = 3,
  /*
   A defect of the library. The handle must not be used any more, but for closing it.
   */
  TRAIL_STATUS_PANIC = 4,
} TrailStatus;

/*
 Kind of an event.
 */
typedef enum TrailEventKind {
  /*
   None came in time.
   */
  TRAIL_EVENT_KIND_NONE = 0,
  /*
   A token: `token`, `logprob` and `text`.
   */
  TRAIL_EVENT_KIND_TOKEN = 1,
  /*
   A prediction: `generated` and `remaining`.
   */
  TRAIL_EVENT_KIND_PREDICTION = 2,
  /*
   Another request has its place for now; it goes on later.
   */
  TRAIL_EVENT_KIND_PREEMPTED = 3,
  /*
   The end: `reason`, and `text` that was held back. No event comes after it.
   */
  TRAIL_EVENT_KIND_FINISHED = 4,
} TrailEventKind;

/*
 Reason for the end of an answer.
 */
typedef enum TrailFinishReason {
  /*
   It has not ended.
   */
  TRAIL_FINISH_REASON_NONE = 0,
  /*
   An end-of-sequence token, a stop token or a stop string came.
   */
  TRAIL_FINISH_REASON_STOP = 1,
  /*
   It has `max_tokens`.
   */
  TRAIL_FINISH_REASON_LENGTH = 2,
  /*
   It was cancelled.
   */
  TRAIL_FINISH_REASON_CANCELLED = 3,
  /*
   The engine stopped.
   */
  TRAIL_FINISH_REASON_SHUTDOWN = 4,
  /*
   The engine broke down, or no token could be sampled.
   */
  TRAIL_FINISH_REASON_FAILED = 5,
  /*
   It was given up, as the engine was full.
   */
  TRAIL_FINISH_REASON_OVERLOADED = 6,
} TrailFinishReason;

/*
 A model with its engine. Any number of threads may call its functions at once.
 */
typedef struct TrailEngine TrailEngine;

/*
 A trained probe. Any number of threads may call its functions at once.
 */
typedef struct TrailProbe TrailProbe;

/*
 A request. One thread polls it; any one may cancel it meanwhile.
 */
typedef struct TrailRequest TrailRequest;

/*
 A scheduler. One thread at a time calls its functions.
 */
typedef struct TrailScheduler TrailScheduler;

/*
 A probe with its filter, for some answers at once. One thread at a time calls its functions.
 */
typedef struct TrailTracker TrailTracker;

/*
 Sizes of an engine.
 */
typedef struct TrailEngineInfo {
  /*
   Most tokens of prompt and answer together.
   */
  size_t max_model_len;
  /*
   Tokens of the vocabulary.
   */
  size_t vocab_size;
  /*
   Most sequences in one step.
   */
  size_t max_running;
  /*
   Requests submitted and not finished.
   */
  size_t num_unfinished;
} TrailEngineInfo;

/*
 Called after each event of a request, on a thread of the engine's, perhaps before
 `trail_engine_submit` returns. It must not wait, not call the functions of its request, and not
 close a handle. It is not called any more once `trail_request_close` has returned, which waits
 for a call in progress, nor once a submission has failed.
 */
typedef void (*TrailNotify)(void *data);

/*
 Options of a request. `trail_request_options_default` fills it.
 */
typedef struct TrailRequestOptions {
  /*
   Bytes of this structure, as the caller's header has it.
   */
  size_t size;
  /*
   Token ids of the prompt.
   */
  const uint32_t *prompt;
  /*
   Number of tokens of the prompt, at least 1.
   */
  size_t num_prompt;
  /*
   Most tokens of the answer.
   */
  uint32_t max_tokens;
  /*
   Requests of a lower priority go first, -127 to 127.
   */
  int32_t priority;
  /*
   Divides the logits; 0 takes the likeliest token.
   */
  float temperature;
  /*
   Share of the probability whose tokens are kept; 1 keeps all.
   */
  float top_p;
  /*
   Number of the likeliest tokens that are kept; 0 keeps all.
   */
  uint32_t top_k;
  /*
   Share of the likeliest token's probability below which none is kept.
   */
  float min_p;
  /*
   Divides positive and multiplies negative logits of tokens that have come; 1 is off.
   */
  float repetition_penalty;
  /*
   Subtracted from the logits of tokens in the answer; 0 is off.
   */
  float presence_penalty;
  /*
   The same for each time that they have come.
   */
  float frequency_penalty;
  /*
   Equal seeds give equal answers. The default is random.
   */
  uint64_t seed;
  /*
   The answer goes on after the model's end-of-sequence tokens.
   */
  bool ignore_eos;
  /*
   Texts that end the answer, and are no part of it.
   */
  const char *const *stops;
  /*
   Number of these texts.
   */
  size_t num_stops;
  /*
   Token ids that end the answer.
   */
  const uint32_t *stop_tokens;
  /*
   Number of these tokens.
   */
  size_t num_stop_tokens;
  /*
   Called after each event, until the request is closed; NULL for none.
   */
  TrailNotify notify;
  /*
   Its argument.
   */
  void *notify_data;
} TrailRequestOptions;

/*
 An event of a request.
 */
typedef struct TrailEvent {
  /*
   Its kind, which says what of the others counts.
   */
  enum TrailEventKind kind;
  /*
   Reason of the end.
   */
  enum TrailFinishReason reason;
  /*
   Token id.
   */
  uint32_t token;
  /*
   Natural logarithm of the token's probability.
   */
  float logprob;
  /*
   Tokens that there were when the prediction was made.
   */
  uint32_t generated;
  /*
   Tokens expected to come after these.
   */
  float remaining;
  /*
   Text that is now certain: UTF-8 that ends in a zero byte, often empty, and never NULL. It is
   valid until the next poll of its request.
   */
  const char *text;
  /*
   Bytes of the text, without the zero byte at its end.
   */
  size_t text_len;
} TrailEvent;

/*
 Sizes of a scheduler. `trail_scheduler_options_default` fills it.
 */
typedef struct TrailSchedulerOptions {
  /*
   Bytes of this structure, as the caller's header has it.
   */
  size_t size;
  /*
   Most sequences in one step.
   */
  uint32_t max_running;
  /*
   Most requests at once: running, paused and waiting.
   */
  uint32_t max_requests;
  /*
   Most tokens to compute in one step, at least `max_running`.
   */
  uint32_t token_budget;
  /*
   KV blocks of 16 tokens.
   */
  uint32_t num_blocks;
  /*
   Longest prompt and answer together, tokens.
   */
  uint32_t max_context;
  /*
   Share of the blocks that stays free when a request enters the batch.
   */
  float watermark;
} TrailSchedulerOptions;

/*
 A request to submit. `trail_new_request_default` fills it.
 */
typedef struct TrailNewRequest {
  /*
   Bytes of this structure, as the caller's header has it.
   */
  size_t size;
  /*
   Tokens of the prompt, at least 1.
   */
  uint32_t prompt_tokens;
  /*
   Most tokens of the answer, at least 1.
   */
  uint32_t max_tokens;
  /*
   Tokens of the answer that another engine has generated.
   */
  uint32_t generated;
  /*
   Requests of a lower priority go first, -127 to 127.
   */
  int32_t priority;
  /*
   Time of arrival, seconds on the caller's clock.
   */
  double arrival_s;
  /*
   Output tokens that a predictor expects of the prompt, above 0; negative for none.
   */
  float predicted_length;
} TrailNewRequest;

/*
 The tokens of one request to compute in a step.
 */
typedef struct TrailPlanRow {
  /*
   Number of the request.
   */
  uint64_t request;
  /*
   Position of the first token, from 0.
   */
  uint32_t start;
  /*
   Tokens to compute.
   */
  uint32_t num_tokens;
  /*
   True if the next token is sampled after the last one.
   */
  bool sample;
} TrailPlanRow;

/*
 The plan of a step. Its lists are valid until the next call of its scheduler.
 */
typedef struct TrailPlan {
  /*
   Number of the step.
   */
  uint64_t step;
  /*
   The rows, best rank first.
   */
  const struct TrailPlanRow *rows;
  /*
   Number of rows.
   */
  size_t num_rows;
  /*
   Requests that were in the last plan and are not in this one.
   */
  const uint64_t *preempted;
  /*
   Number of these requests.
   */
  size_t num_preempted;
  /*
   Requests that have lost their blocks: their next row begins at 0.
   */
  const uint64_t *evicted;
  /*
   Number of these requests.
   */
  size_t num_evicted;
} TrailPlan;

/*
 Expectation of the rest of an answer, tokens.
 */
typedef struct TrailEstimate {
  /*
   The expectation.
   */
  float remaining;
  /*
   The 10 % quantile.
   */
  float p10;
  /*
   The median.
   */
  float p50;
  /*
   The 90 % quantile.
   */
  float p90;
} TrailEstimate;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The reason for which the last call of this thread that failed did: one line of UTF-8, empty if
 none has. It is valid until the next call of this thread.
 */
const char *trail_last_error(void);

/*
 The version of the library, as `0.1.0`.
 */
const char *trail_version(void);

/*
 Loads a model and starts its engine. `options` are those of `trail-rt serve` on model,
 predictions, scheduling and device, a text each: `"--model"`, `"PATH"`, `"--threads"`,
 `"4"`. The engine is closed by `trail_engine_close`.
 */
enum TrailStatus trail_engine_open(const char *const *options,
                                   size_t num_options,
                                   struct TrailEngine **engine);

/*
 Ends an engine; with open requests it goes on until the last one is closed. NULL is none.
 */
void trail_engine_close(struct TrailEngine *engine);

/*
 Writes the sizes of an engine.
 */
enum TrailStatus trail_engine_info(const struct TrailEngine *engine,
                                   struct TrailEngineInfo *info);

/*
 Writes the first `capacity` tokens of `text` to `tokens`, and the number of all to `num_tokens`.
 With `as_chat` the text is a user's turn, by the model's chat template, if it has one.
 */
enum TrailStatus trail_engine_encode(const struct TrailEngine *engine,
                                     const char *text,
                                     bool as_chat,
                                     uint32_t *tokens,
                                     size_t capacity,
                                     size_t *num_tokens);

/*
 Submits a request, which is closed by `trail_request_close`.
 */
enum TrailStatus trail_engine_submit(const struct TrailEngine *engine,
                                     const struct TrailRequestOptions *options,
                                     struct TrailRequest **request);

/*
 True if the engine broke down: every request ends with `TRAIL_FINISH_REASON_FAILED`, and another
 engine must be opened.
 */
bool trail_engine_has_failed(const struct TrailEngine *engine);

/*
 Fills `options` of `sizeof(TrailRequestOptions)` bytes with the defaults: 128 tokens,
 temperature 1, a random seed.
 */
enum TrailStatus trail_request_options_default(struct TrailRequestOptions *options,
                                               size_t size);

/*
 Waits at most `timeout_ms` for the next event, and writes it: `TRAIL_EVENT_KIND_NONE` if none
 came. 0 does not wait.
 */
enum TrailStatus trail_request_poll(struct TrailRequest *request,
                                    uint32_t timeout_ms,
                                    struct TrailEvent *event);

/*
 Ends an answer where it is; its last event still comes.
 */
enum TrailStatus trail_request_cancel(const struct TrailRequest *request);

/*
 Output tokens that were expected on submission; a negative number without a predictor.
 */
float trail_request_predicted(const struct TrailRequest *request);

/*
 Ends a request, which is cancelled if it goes on; its `notify` is not called any more. NULL is
 none.
 */
void trail_request_close(struct TrailRequest *request);

/*
 Fills `options` of `sizeof(TrailSchedulerOptions)` bytes with the defaults: those of vLLM, and
 1,024 blocks.
 */
enum TrailStatus trail_scheduler_options_default(struct TrailSchedulerOptions *options,
                                                 size_t size);

/*
 Creates a scheduler of a policy, as `"trail:0.8"`; `trail_scheduler_close` ends it.
 */
enum TrailStatus trail_scheduler_open(const char *policy,
                                      const struct TrailSchedulerOptions *options,
                                      struct TrailScheduler **scheduler);

/*
 Ends a scheduler. NULL is none.
 */
void trail_scheduler_close(struct TrailScheduler *scheduler);

/*
 Fills `request` of `sizeof(TrailNewRequest)` bytes with the defaults: no prediction.
 */
enum TrailStatus trail_new_request_default(struct TrailNewRequest *request, size_t size);

/*
 Takes a request into the queue, and writes its number, which no other one of the scheduler has.
 */
enum TrailStatus trail_scheduler_submit(struct TrailScheduler *scheduler,
                                        const struct TrailNewRequest *request,
                                        uint64_t *number);

/*
 Records how many output tokens a request is expected to need from now on.
 */
enum TrailStatus trail_scheduler_predict(struct TrailScheduler *scheduler,
                                         uint64_t request,
                                         float remaining);

/*
 Plans the next step, at `now_s` seconds on the caller's clock.
 */
enum TrailStatus trail_scheduler_plan(struct TrailScheduler *scheduler,
                                      double now_s,
                                      struct TrailPlan *plan);

/*
 Records that the plan's rows were computed, and a token sampled where they say so.
 */
enum TrailStatus trail_scheduler_advance(struct TrailScheduler *scheduler);

/*
 Records `tokens` that the last step sampled beyond one: draft tokens that were right.
 */
enum TrailStatus trail_scheduler_accept(struct TrailScheduler *scheduler,
                                        uint64_t request,
                                        uint32_t tokens);

/*
 Removes a request, completed or cancelled.
 */
enum TrailStatus trail_scheduler_finish(struct TrailScheduler *scheduler, uint64_t request);

/*
 Writes the KV blocks of a request, in the order of its tokens; the list is valid until the next
 call of the scheduler.
 */
enum TrailStatus trail_scheduler_blocks(const struct TrailScheduler *scheduler,
                                        uint64_t request,
                                        const uint32_t **blocks,
                                        size_t *num_blocks);

/*
 Output tokens that a request is expected to need; negative without a prediction, or if it has
 finished.
 */
float trail_scheduler_remaining(const struct TrailScheduler *scheduler, uint64_t request);

/*
 Reads a probe's file; `trail_probe_close` ends it. A probe that reads the prompt is refused.
 */
enum TrailStatus trail_probe_open(const char *path, struct TrailProbe **probe);

/*
 Ends a probe. NULL is none.
 */
void trail_probe_close(struct TrailProbe *probe);

/*
 Width of the activations; 0 for NULL.
 */
size_t trail_probe_width(const struct TrailProbe *probe);

/*
 Writes the expected remaining tokens `remaining` `[num_rows]` of each row of `activations`
 `[num_rows, width]` alone. `generated` `[num_rows]` are the tokens of the answer so far; NULL
 where the probe does not read them.
 */
enum TrailStatus trail_probe_predict(const struct TrailProbe *probe,
                                     const float *activations,
                                     size_t num_rows,
                                     const uint32_t *generated,
                                     float *remaining);

/*
 Creates a tracker of `max_requests` places for answers; `trail_tracker_close` ends it. The probe
 may be closed before.
 */
enum TrailStatus trail_tracker_open(const struct TrailProbe *probe,
                                    size_t max_requests,
                                    struct TrailTracker **tracker);

/*
 Ends a tracker. NULL is none.
 */
void trail_tracker_close(struct TrailTracker *tracker);

/*
 Takes in the activation `[width]` after `generated` tokens of the answer at `place`, 0 for the
 mean over its prompt's, and writes what is expected then.
 */
enum TrailStatus trail_tracker_observe(struct TrailTracker *tracker,
                                       size_t place,
                                       uint32_t generated,
                                       const float *activation,
                                       struct TrailEstimate *estimate);

/*
 Makes `place` free for another answer.
 */
enum TrailStatus trail_tracker_forget(struct TrailTracker *tracker, size_t place);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TRAIL_RT_H */
