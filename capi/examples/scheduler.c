/* The scheduler in front of another engine: a toy whose steps have a cost. Mean latency under two
 * policies. */
#include <stdio.h>
#include <stdlib.h>

#include "trail_rt.h"

enum { REQUESTS = 200, MAX_RUNNING = 8 };

typedef struct {
    uint64_t number;
    unsigned length;
    unsigned generated;
    double arrival_s;
} Request;

static void check(TrailStatus status, const char *what) {
    if (status != TRAIL_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", what, trail_last_error());
        exit(1);
    }
}

/* One in five has a long answer. */
static Request request_at(unsigned at) {
    Request request = {0, (at % 5 == 0 ? 150U : 10U) + at * 7U % 10U, 0, at * 0.05};
    return request;
}

static Request *find(Request *requests, unsigned arrived, uint64_t number) {
    for (unsigned at = 0; at < arrived; at++) {
        if (requests[at].number == number) {
            return &requests[at];
        }
    }
    fprintf(stderr, "a plan has a request that is not there\n");
    exit(1);
}

static double mean_latency_s(const char *policy) {
    TrailSchedulerOptions options;
    check(trail_scheduler_options_default(&options, sizeof options), "options");
    options.max_running = MAX_RUNNING;
    options.num_blocks = 64;
    options.max_context = 512;
    TrailScheduler *scheduler = NULL;
    check(trail_scheduler_open(policy, &options, &scheduler), "open");

    Request requests[REQUESTS];
    unsigned arrived = 0;
    unsigned finished = 0;
    double now_s = 0.0;
    double latency_s = 0.0;
    while (finished < REQUESTS) {
        for (; arrived < REQUESTS && request_at(arrived).arrival_s <= now_s; arrived++) {
            Request *request = &requests[arrived];
            *request = request_at(arrived);
            TrailNewRequest new_request;
            check(trail_new_request_default(&new_request, sizeof new_request), "new request");
            new_request.prompt_tokens = 8 + arrived % 56;
            new_request.max_tokens = request->length;
            new_request.arrival_s = request->arrival_s;
            /* A predictor would say so. */
            new_request.predicted_length = (float)request->length;
            check(trail_scheduler_submit(scheduler, &new_request, &request->number), "submit");
        }
        TrailPlan plan;
        check(trail_scheduler_plan(scheduler, now_s, &plan), "plan");
        /* An engine computes the rows here, into the blocks of each request. */
        unsigned tokens = 0;
        uint64_t sampled[MAX_RUNNING];
        unsigned num_sampled = 0;
        for (size_t at = 0; at < plan.num_rows; at++) {
            const TrailPlanRow *row = &plan.rows[at];
            tokens += row->num_tokens;
            if (row->sample) {
                sampled[num_sampled++] = row->request;
            }
        }
        check(trail_scheduler_advance(scheduler), "advance");
        now_s += 0.01 + 0.0001 * tokens;
        for (unsigned at = 0; at < num_sampled; at++) {
            Request *request = find(requests, arrived, sampled[at]);
            request->generated++;
            if (request->generated == request->length) {
                check(trail_scheduler_finish(scheduler, request->number), "finish");
                finished++;
                latency_s += now_s - request->arrival_s;
            }
        }
    }
    trail_scheduler_close(scheduler);
    return latency_s / REQUESTS;
}

int main(void) {
    const char *policies[] = {"fcfs", "trail-bert"};
    for (unsigned at = 0; at < 2; at++) {
        printf("%-12s mean latency %.2f s\n", policies[at], mean_latency_s(policies[at]));
    }
    /* A wrong call has a reason, and changes nothing. */
    TrailScheduler *scheduler = NULL;
    TrailSchedulerOptions options;
    check(trail_scheduler_options_default(&options, sizeof options), "options");
    if (trail_scheduler_open("no policy", &options, &scheduler) == TRAIL_STATUS_OK ||
        scheduler != NULL) {
        return 1;
    }
    printf("refused: %.14s\n", trail_last_error());
    return 0;
}
