/* Answers a prompt with a model, and prints the text as it comes.
 *
 *     generate MODEL [PROMPT]
 */
#include <stdio.h>
#include <stdlib.h>

#include "trail_rt.h"

static void check(TrailStatus status, const char *what) {
    if (status != TRAIL_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", what, trail_last_error());
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL [PROMPT]\n", argv[0]);
        return 2;
    }
    const char *prompt = argc > 2 ? argv[2] : "Tell me a story about a cat.";

    /* The options of trail-rt serve. */
    const char *options[] = {"--model", argv[1], "--policy", "trail", "--threads", "2"};
    TrailEngine *engine = NULL;
    check(trail_engine_open(options, sizeof options / sizeof *options, &engine), "open");

    uint32_t tokens[1024];
    size_t num_tokens = 0;
    check(trail_engine_encode(engine, prompt, true, tokens, 1024, &num_tokens), "encode");
    if (num_tokens > 1024) {
        fprintf(stderr, "the prompt has %zu tokens, at most 1024\n", num_tokens);
        return 1;
    }

    TrailRequestOptions request_options;
    check(trail_request_options_default(&request_options, sizeof request_options), "options");
    request_options.prompt = tokens;
    request_options.num_prompt = num_tokens;
    request_options.max_tokens = 200;
    request_options.temperature = 0.0F;
    TrailRequest *request = NULL;
    check(trail_engine_submit(engine, &request_options, &request), "submit");

    unsigned generated = 0;
    unsigned predictions = 0;
    float first_prediction = trail_request_predicted(request);
    TrailEvent event;
    do {
        /* A program with other work to do polls with 0, or sets request_options.notify. */
        check(trail_request_poll(request, 1000, &event), "poll");
        generated += event.kind == TRAIL_EVENT_KIND_TOKEN;
        predictions += event.kind == TRAIL_EVENT_KIND_PREDICTION;
        fwrite(event.text, 1, event.text_len, stdout);
        fflush(stdout);
    } while (event.kind != TRAIL_EVENT_KIND_FINISHED);
    printf("\n%u tokens, reason %d; %.0f were predicted, and again %u times\n", generated,
           (int)event.reason, (double)first_prediction, predictions);

    trail_request_close(request);
    trail_engine_close(engine);
    return 0;
}
