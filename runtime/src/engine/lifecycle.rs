//! Admission and completion of requests.

use std::sync::Arc;

use trail_scheduler::{Finished, LoggedScheduler, RequestIdx};

use super::active::ActiveRequest;
use super::block_hashes::{BlockHasher, SequenceHashes};
use super::constraint::MaskWorkers;
use super::event::FinishReason;
use super::in_flight::{InFlightStep, Sampling, Scoring};
use super::prediction_watch::PredictionWatch;
use super::stats::{Counters, add};
use super::submit_queue::{EngineInbox, SubmitQueue};
use super::swaps::Swaps;
use crate::backend::{AllowedTokens, BLOCK_TOKENS, Sampled, SamplingInput, SamplingInputs, Scored};

/// The requests of the engine, from admission to their last event.
pub(super) struct Lifecycle {
    /// By the scheduler's request index: `[max_requests]`.
    requests: Box<[Option<Box<ActiveRequest>>]>,
    /// Requests whose last token came with the collected step.
    ended: Vec<(RequestIdx, FinishReason)>,
    /// Number of requests above which the worst ranked one that never ran ends.
    shed_above: Option<usize>,
    eos_tokens: Vec<u32>,
    /// `None` where the policy does not rank by the probe.
    watch: Option<PredictionWatch>,
    /// `None` where no KV block is shared.
    hasher: Option<BlockHasher>,
    mask_workers: Arc<MaskWorkers>,
    queue: Arc<SubmitQueue>,
    inbox: EngineInbox,
    counters: Arc<Counters>,
}

/// Sizes of an engine's queue and steps.
pub(super) struct LifecycleSizes {
    /// Requests that the engine has room for.
    pub(super) max_requests: usize,
    /// Number of requests above which some are shed; `None`: none is.
    pub(super) shed_above: Option<usize>,
    /// Requests that can end in one step.
    pub(super) segments: usize,
}

impl Lifecycle {
    /// `watch` sees the predictions of every complete answer.
    pub(super) fn new(
        sizes: LifecycleSizes,
        eos_tokens: Vec<u32>,
        watch: Option<PredictionWatch>,
        (hasher, mask_workers): (Option<BlockHasher>, Arc<MaskWorkers>),
        (queue, inbox): (Arc<SubmitQueue>, EngineInbox),
        counters: Arc<Counters>,
    ) -> Lifecycle {
        let LifecycleSizes { max_requests, shed_above, segments } = sizes;
        Lifecycle {
            requests: (0..max_requests).map(|_| None).collect(),
            ended: Vec::with_capacity(segments),
            shed_above,
            eos_tokens,
            watch,
            hasher,
            mask_workers,
            queue,
            inbox,
            counters,
        }
    }

    pub(super) fn queue(&self) -> &SubmitQueue {
        &self.queue
    }

    /// Reserves the buffers of the request at an index that is in the plan; `predicts` if there is
    /// a probe.
    pub(super) fn schedule(&mut self, idx: RequestIdx, predicts: bool) {
        let active = self.planned_mut(idx);
        active.start(predicts || active.request.predictions.is_some());
    }

    /// The request at an index that is in the plan.
    pub(super) fn planned(&self, idx: RequestIdx) -> &ActiveRequest {
        self.requests[idx.index()].as_ref().expect("planned requests are live")
    }

    /// The request at `idx`, if any.
    pub(super) fn live(&self, idx: RequestIdx) -> Option<&ActiveRequest> {
        self.requests[idx.index()].as_deref()
    }

    /// The request at an index that is in the plan.
    pub(super) fn planned_mut(&mut self, idx: RequestIdx) -> &mut ActiveRequest {
        self.requests[idx.index()].as_mut().expect("planned requests are live")
    }

    /// The request at `idx` if it is still the one with number `id`.
    pub(super) fn get_mut(&mut self, idx: RequestIdx, id: u64) -> Option<&mut ActiveRequest> {
        self.requests[idx.index()].as_deref_mut().filter(|active| active.id == id)
    }

    /// Admits what was submitted and ends what was cancelled since the last call. Returns whether
    /// anything was.
    pub(super) fn drain_inbox(
        &mut self,
        scheduler: &mut LoggedScheduler,
        swaps: &mut Swaps,
    ) -> bool {
        let mut any = false;
        while let Some(active) = self.inbox.next_submission() {
            any = true;
            self.admit(active, scheduler);
        }
        self.shed(scheduler, swaps);
        while let Some(status) = self.inbox.next_cancel() {
            if let Some(idx) = status.live_idx() {
                any = true;
                self.end(RequestIdx(idx), FinishReason::Cancelled, scheduler, swaps);
            }
        }
        any
    }

    /// Ends the worst ranked requests that never ran while there are too many.
    fn shed(&mut self, scheduler: &mut LoggedScheduler, swaps: &mut Swaps) {
        let Some(max) = self.shed_above else { return };
        while scheduler.live() > max
            && let Some(idx) = scheduler.worst_unstarted()
        {
            add(&self.counters.shed, 1);
            self.end(idx, FinishReason::Overloaded, scheduler, swaps);
        }
    }

    fn admit(&mut self, mut active: Box<ActiveRequest>, scheduler: &mut LoggedScheduler) {
        if active.status.is_cancelled() {
            active.finish(FinishReason::Cancelled);
            return;
        }
        // `Engine::submit` made the same check, and the queue bounds the number of requests.
        let idx = scheduler.submit(active.new).expect("submit() checked the request");
        active.status.admit(idx.0);
        for hash in active.hashes.as_mut().map(SequenceHashes::take_prompt).unwrap_or_default() {
            scheduler.push_block_hash(idx, hash);
        }
        add(&self.counters.prompt_tokens, active.prompt_len as u64);
        self.requests[idx.index()] = Some(active);
    }

    /// Lets the request of the plan at `idx` begin again without hashes: it found blocks of other
    /// tokens.
    pub(super) fn forget_hashes(&mut self, idx: RequestIdx, scheduler: &mut LoggedScheduler) {
        let active = self.planned_mut(idx);
        active.hashes = None;
        scheduler.forget_hashes(idx);
    }

    /// Lets the request of the plan at `idx`, which lost its recurrent state, begin again.
    pub(super) fn lose_state(&mut self, idx: RequestIdx, scheduler: &mut LoggedScheduler) {
        let active = self.planned_mut(idx);
        active.has_kv = false;
        active.events.preempted(true);
        scheduler.restart(idx);
        add(&self.counters.evictions, 1);
    }

    /// Removes from the scheduler the requests whose last token comes with the step in flight, so
    /// that they are not planned again. Their index stays taken until the step is collected, as no
    /// request is admitted before.
    pub(super) fn retire_at_max_tokens(
        &self,
        in_flight: &InFlightStep,
        scheduler: &mut LoggedScheduler,
    ) {
        for &Sampling { idx, id, .. } in &in_flight.sampled {
            let active = self.requests[idx.index()].as_ref();
            let live = active.is_some_and(|active| active.id == id);
            let state = scheduler.state(idx);
            if live && state.generated >= state.max_tokens {
                scheduler.finish(idx);
            }
        }
    }

    /// The request that the last plan preempted at `idx`.
    pub(super) fn preempted_mut(&mut self, idx: RequestIdx) -> Option<&mut ActiveRequest> {
        self.requests[idx.index()].as_deref_mut()
    }

    /// Sends the prompts' tokens that a collected step scored. A request that ended since its
    /// launch gets none; one whose logits were not finite ends.
    pub(super) fn send_scores(&mut self, step: &InFlightStep, scored: &[Scored]) {
        let mut rest = scored;
        for &Scoring { idx, id, tokens } in &step.scored {
            let (results, others) = rest.split_at(tokens as usize);
            rest = others;
            let Some(active) = self.get_mut(idx, id) else { continue };
            for result in results {
                let Ok(scored) = result else {
                    self.ended.push((idx, FinishReason::Error));
                    break;
                };
                active.events.alternatives(&scored.token);
                let (id, logprob) = (scored.token.id, scored.token.logprob);
                active.events.prompt_token(id, logprob, scored.rank);
            }
        }
    }

    /// Sends the tokens of a collected step: of draft tokens those that were sampled. A request
    /// that ended since its launch gets none; one whose logits were not finite ends without one.
    pub(super) fn send_tokens(
        &mut self,
        step: &InFlightStep,
        sampled: &[Sampled],
        scheduler: &mut LoggedScheduler,
    ) {
        let (mut generated, mut rest) = (0, sampled);
        for sampling in &step.sampled {
            let (results, others) = rest.split_at(1 + sampling.drafts as usize);
            rest = others;
            generated += self.send_results(sampling, results, scheduler);
        }
        add(&self.counters.generated_tokens, generated);
    }

    /// Sends the `results` of a request's rows up to the first that is not the next draft token,
    /// or ends the answer. Returns the number of tokens.
    fn send_results(
        &mut self,
        sampling: &Sampling,
        results: &[Sampled],
        scheduler: &mut LoggedScheduler,
    ) -> u64 {
        let &Sampling { idx, id, drafts, .. } = sampling;
        let active = self.requests[idx.index()].as_mut().filter(|active| active.id == id);
        let Some(active) = active.filter(|_| !self.ended.iter().any(|ended| ended.0 == idx)) else {
            return 0;
        };
        if active.request.max_tokens == 0 {
            let reason = results[0].map_or(FinishReason::Error, |_| FinishReason::Length);
            self.ended.push((idx, reason));
            return 0;
        }
        let (mut draft_ids, count) = ([0; BLOCK_TOKENS], drafts as usize);
        let known = active.tokens.len() - count;
        draft_ids[..count].copy_from_slice(&active.tokens[known..]);
        active.tokens.truncate(known);
        let mut sent = 0;
        for result in results {
            let Ok(token) = result else {
                self.ended.push((idx, FinishReason::Error));
                break;
            };
            if active.constrained.as_ref().is_some_and(|answer| answer.is_faulty()) {
                self.ended.push((idx, FinishReason::Constraint));
                break;
            }
            active.events.alternatives(token);
            active.tokens.push(token.id);
            let hashes = active.hashes.as_mut().zip(self.hasher.as_ref());
            let hash = hashes.and_then(|(hashes, hasher)| hashes.next(hasher, &active.tokens));
            if let Some(hash) = hash {
                scheduler.push_block_hash(idx, hash);
            }
            active.events.token(token.id, token.logprob);
            sent += 1;
            let cancelled = active.status.is_cancelled().then_some(FinishReason::Cancelled);
            let reason = active.ends_with(token.id, &self.eos_tokens).or(cancelled);
            self.ended.extend(reason.map(|reason| (idx, reason)));
            if let Some(answer) = active.constrained.as_ref().filter(|_| reason.is_none()) {
                self.mask_workers.take(answer, token.id);
            }
            if reason.is_some() || draft_ids[..count].get(sent as usize - 1) != Some(&token.id) {
                break;
            }
        }
        self.accept(sampling, sent, scheduler);
        u64::from(sent)
    }

    /// Records that the step of `sampling` yielded `sent` tokens.
    fn accept(&mut self, sampling: &Sampling, sent: u32, scheduler: &mut LoggedScheduler) {
        let &Sampling { idx, drafts, .. } = sampling;
        let accepted = sent.saturating_sub(1);
        let active = self.requests[idx.index()].as_mut().expect("it is live");
        let last = active.tokens.last().copied().unwrap_or_default();
        active.acceptance.record(accepted as usize, last);
        if drafts == 0 {
            return;
        }
        active.status.add_accepted(accepted);
        add(&self.counters.draft_tokens, drafts.into());
        add(&self.counters.accepted_tokens, accepted.into());
        if accepted > 0 {
            scheduler.accept(idx, accepted);
        }
    }

    /// Requests of the collected step whose logits were not finite.
    pub(super) fn damaged(&self) -> impl Iterator<Item = RequestIdx> {
        let ended = self.ended.iter().filter(|(_, reason)| *reason == FinishReason::Error);
        ended.map(|&(idx, _)| idx)
    }

    /// Ends the requests that [`Lifecycle::send_tokens`] found complete.
    pub(super) fn finish_ended(&mut self, scheduler: &mut LoggedScheduler, swaps: &mut Swaps) {
        while let Some((idx, reason)) = self.ended.pop() {
            self.end(idx, reason, scheduler, swaps);
        }
    }

    fn end(
        &mut self,
        idx: RequestIdx,
        reason: FinishReason,
        scheduler: &mut LoggedScheduler,
        swaps: &mut Swaps,
    ) {
        let Some(active) = self.requests[idx.index()].take() else { return };
        let finished = scheduler.finish(idx);
        let counters = &self.counters;
        // A request of no tokens has no answer whose length was predicted.
        if matches!(reason, FinishReason::Stop | FinishReason::Length) && active.generated() > 0 {
            let (sum, count) = active.prediction_error();
            add(&counters.prediction_error_millitokens, (sum * 1e3) as u64);
            add(&counters.prediction_errors, count);
            let (id, tokens) = (active.id, active.generated());
            add(&counters.answers, 1);
            add(&counters.answer_tokens, tokens as u64);
            let watch = self.watch.as_mut();
            if let Some(window) = watch.and_then(|of| of.finished(id, tokens, &active.predictions))
            {
                counters.set_prediction_window(&window);
                scheduler.trust_predictions(window.trusted);
            }
        }
        add(&counters.finished, 1);
        let ActiveRequest { permit, events, .. } = *active;
        match finished {
            Finished::Now => drop(permit),
            Finished::AfterTransfer => swaps.keep_permit(idx, permit),
        }
        counters.set_load(scheduler, self.queue.live());
        // Last: a caller that knows finds the permit released and the counters up to date.
        events.finish(reason);
    }

    /// Ends every admitted request without touching the scheduler, which a panic may have left in
    /// any state.
    pub(super) fn finish_all(&mut self, reason: FinishReason) {
        for active in self.requests.iter_mut().filter_map(Option::take) {
            add(&self.counters.finished, 1);
            active.finish(reason);
        }
        self.counters.clear_load();
    }

    /// Ends submitted requests without admitting them.
    pub(super) fn refuse_submissions(&mut self, reason: FinishReason) {
        while let Some(active) = self.inbox.next_submission() {
            active.finish(reason);
        }
    }
}

impl SamplingInputs for Lifecycle {
    fn of(&self, request: u32) -> SamplingInput<'_> {
        let active = self.planned(RequestIdx(request));
        let (prompt, generated) = active.tokens.split_at(active.prompt_len);
        let allowed = active.constrained.as_deref().map(|answer| answer as &dyn AllowedTokens);
        SamplingInput { params: &active.request.sampling, prompt, generated, allowed }
    }
}
