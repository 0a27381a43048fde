//! Dynamo's request in the engine's terms.

use std::collections::BTreeMap;

use dynamo_backend_common::{PreprocessedRequest, SamplingOptions, StopConditions};
use trail_dynamo_proto::MAX_TOKENS_KEY;
use trail_runtime::engine::{FinishReason, Request, SamplingParams};

/// A request as it arrived.
#[derive(Clone)]
pub enum Job {
    /// To generate.
    Run(Box<Request>),
    /// Moved here when only its end was missing.
    Complete(FinishReason),
}

/// Limits of the engine.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most tokens of prompt and output.
    pub context: u32,
    /// Tokens that end an answer, unless the request ignores them.
    pub eos: Vec<u32>,
}

/// The job of `request`, whose id is `id`. An error names what cannot be served.
///
/// Dynamo moves a request by appending the tokens generated so far to the prompt and lowering
/// `max_tokens` by as many; `metadata` holds the original `max_tokens`, from which their number
/// follows. The engine then counts them as output: the position of the next token, which keys its
/// randomness, is that in the whole sequence, and age and penalties go on.
pub fn job(
    request: PreprocessedRequest,
    metadata: &BTreeMap<String, String>,
    id: &str,
    limits: &Limits,
) -> Result<Job, String> {
    refuse_unsupported(&request)?;
    let length = request.token_ids.len() as u32;
    let stops = &request.stop_conditions;
    let whole = metadata.get(MAX_TOKENS_KEY).and_then(|value| value.parse::<u32>().ok());
    let generated = match (whole, stops.max_tokens) {
        (Some(whole), Some(left)) => whole.saturating_sub(left),
        _ => 0,
    };
    if generated >= length && generated > 0 {
        return Err(format!(
            "{MAX_TOKENS_KEY} says that {generated} of {length} tokens are output"
        ));
    }
    let sampling = sampling(&request.sampling_options, id)?;
    let counts_output = sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
    if counts_output && (whole.is_none() || stops.max_tokens.is_none()) {
        return Err(
            "presence_penalty and frequency_penalty need max_tokens: without it a request \
                    that moves could not tell its output from its prompt"
                .into(),
        );
    }
    let ignore_eos = stops.ignore_eos.unwrap_or(false);
    let stop_tokens = stop_tokens(stops);
    if generated > 0 {
        let last = request.token_ids[length as usize - 1];
        let ends = stop_tokens.contains(&last) || (!ignore_eos && limits.eos.contains(&last));
        if ends {
            return Ok(Job::Complete(FinishReason::Stop));
        }
    }
    let left = stops.max_tokens.unwrap_or(limits.context.saturating_sub(length));
    if left == 0 {
        return Ok(Job::Complete(FinishReason::Length));
    }
    let hints = request.routing.as_ref();
    let expected = hints.and_then(|hints| hints.expected_output_tokens);
    // nvext.cache_salt, in Dynamo's words.
    let salt = hints.and_then(|hints| hints.cache_namespace.clone()).unwrap_or_default();
    let prompt = (*request.token_ids).clone();
    Ok(Job::Run(Box::new(Request {
        generated,
        sampling,
        stop_tokens,
        ignore_eos,
        length_hint: expected,
        cache_salt: salt.into_bytes(),
        ..Request::new(prompt, generated + left)
    })))
}

/// Refuses by name what would change the answer and is not supported.
fn refuse_unsupported(request: &PreprocessedRequest) -> Result<(), String> {
    let sampling = &request.sampling_options;
    let stops = &request.stop_conditions;
    let output = &request.output_options;
    let routing = request.routing.as_ref();
    let refused = [
        ("n", sampling.n.is_some_and(|n| n > 1)),
        ("best_of", sampling.best_of.is_some_and(|n| n > 1)),
        ("use_beam_search", sampling.use_beam_search.unwrap_or(false)),
        ("structured output", sampling.guided_decoding.is_some()),
        ("min_tokens", stops.min_tokens.is_some_and(|n| n > 0)),
        ("max_thinking_tokens", stops.max_thinking_tokens.is_some()),
        ("top_logprobs", output.logprobs.is_some_and(|n| n > 0)),
        ("prompt_logprobs", output.prompt_logprobs.is_some()),
        ("prompt_embeds", request.prompt_embeds.is_some()),
        ("images, audio and video", request.multi_modal_data.is_some()),
        ("lora_name", routing.is_some_and(|hints| hints.lora_name.is_some())),
    ];
    let named = refused.into_iter().find(|(_, is_set)| *is_set).map(|(name, _)| name);
    match named.or_else(|| passed_through(request)) {
        Some(name) => Err(format!("{name} is not supported: leave it out")),
        None => Ok(()),
    }
}

/// The first parameter of sampling that Dynamo does not know itself and passes on. `detokenize` is
/// about the text, which is Dynamo's.
fn passed_through(request: &PreprocessedRequest) -> Option<&str> {
    let passed = request.extra_args.as_ref()?.get("sampling_options")?.as_object()?;
    let set = passed.iter().find(|(name, value)| *name != "detokenize" && !value.is_null());
    set.map(|(name, _)| name.as_str())
}

fn sampling(options: &SamplingOptions, id: &str) -> Result<SamplingParams, String> {
    let default = SamplingParams::default();
    let top_k = match options.top_k {
        None | Some(-1 | 0) => 0,
        Some(top_k) => u32::try_from(top_k).map_err(|_| format!("top_k is {top_k}"))?,
    };
    Ok(SamplingParams {
        temperature: options.temperature.unwrap_or(default.temperature),
        top_k,
        top_p: options.top_p.unwrap_or(default.top_p),
        min_p: options.min_p.unwrap_or(default.min_p),
        repetition_penalty: options.repetition_penalty.unwrap_or(default.repetition_penalty),
        presence_penalty: options.presence_penalty.unwrap_or(default.presence_penalty),
        frequency_penalty: options.frequency_penalty.unwrap_or(default.frequency_penalty),
        seed: options.seed.map_or_else(|| fnv1a(id), |seed| seed as u64),
        ..default
    })
}

fn stop_tokens(stops: &StopConditions) -> Vec<u32> {
    let lists =
        [&stops.stop_token_ids, &stops.stop_token_ids_visible, &stops.stop_token_ids_hidden];
    let mut tokens: Vec<u32> = lists.into_iter().flatten().flatten().copied().collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

/// FNV-1a: the seed of a request without one, the same on every worker, as Dynamo keeps the id of a
/// request that it moves.
fn fnv1a(id: &str) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    id.bytes().fold(0xcbf2_9ce4_8422_2325, fold)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use trail_scheduler::rng::Rng;

    use super::*;

    const LIMITS: Limits = Limits { context: 100, eos: Vec::new() };

    fn parse(body: Value, whole: Option<u32>) -> Result<Job, String> {
        let request = serde_json::from_value(body).expect("a request");
        let whole = whole.map(|whole| (MAX_TOKENS_KEY.to_owned(), whole.to_string()));
        let limits = Limits { eos: vec![7], ..LIMITS };
        job(request, &whole.into_iter().collect(), "an id", &limits)
    }

    fn run(body: Value, whole: Option<u32>) -> Request {
        match parse(body, whole) {
            Ok(Job::Run(request)) => *request,
            Ok(Job::Complete(reason)) => panic!("complete: {reason:?}"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_moved_request_counts_what_was_generated_as_output() {
        let new = run(json!({"token_ids": [1, 2], "stop_conditions": {"max_tokens": 9}}), Some(9));
        assert_eq!((new.generated, new.max_tokens), (0, 9));
        let body = json!({"token_ids": [1, 2, 3, 4, 5], "stop_conditions": {"max_tokens": 6}});
        let moved = run(body, Some(9));
        assert_eq!((moved.generated, moved.max_tokens, moved.prompt.len()), (3, 9, 5));
        assert_eq!(moved.sampling.seed, new.sampling.seed, "of the request's id");
    }

    #[test]
    fn one_that_moved_with_its_last_token_is_complete() {
        let stopped = json!({"token_ids": [1, 2, 7], "stop_conditions": {"max_tokens": 8}});
        assert!(matches!(parse(stopped.clone(), Some(9)), Ok(Job::Complete(FinishReason::Stop))));
        assert_eq!(run(stopped, Some(8)).generated, 0, "the token is the prompt's own");
        let full = json!({"token_ids": [1, 2, 3], "stop_conditions": {"max_tokens": 0}});
        assert!(matches!(parse(full, Some(1)), Ok(Job::Complete(FinishReason::Length))));
    }

    #[test]
    fn without_max_tokens_the_context_is_the_limit() {
        let open = run(json!({"token_ids": [1, 2], "stop_conditions": {}}), None);
        assert_eq!((open.generated, open.max_tokens), (0, 98));
    }

    #[test]
    fn what_cannot_continue_is_refused_by_name() {
        let with = |sampling: Value, stops: Value| {
            let body = json!({"token_ids": [1], "sampling_options": sampling,
                              "stop_conditions": stops});
            parse(body, None).err().expect("is refused")
        };
        assert!(with(json!({"n": 2}), json!({})).starts_with("n is not supported"));
        assert!(with(json!({"presence_penalty": 0.5}), json!({})).contains("need max_tokens"));
        assert!(with(json!({}), json!({"min_tokens": 4})).contains("min_tokens"));
        let guided = json!({"guided_decoding": {"regex": "a"}});
        assert!(with(guided, json!({})).contains("structured output"));
    }

    #[test]
    fn parameters_that_dynamo_passes_on_are_refused_by_name() {
        let with = |passed: Value| {
            let body = json!({"token_ids": [1], "stop_conditions": {},
                              "extra_args": {"sampling_options": passed}});
            parse(body, None).err()
        };
        let refused = with(json!({"detokenize": true, "allowed_token_ids": [10, 11]}));
        assert_eq!(refused.as_deref(), Some("allowed_token_ids is not supported: leave it out"));
        assert!(with(json!({"bad_words_token_ids": [[1]]})).is_some());
        assert!(with(json!({"logprob_token_ids": [1]})).is_some());
        assert_eq!(with(json!({"detokenize": false, "logprob_token_ids": null})), None);
    }

    #[test]
    fn the_clients_estimate_is_the_length_hint() {
        let body = json!({"token_ids": [1], "stop_conditions": {},
                          "routing": {"expected_output_tokens": 40}});
        let request = run(body, None);
        assert_eq!((request.length_hint, request.initial_prediction), (Some(40), None));
    }

    #[test]
    fn the_clients_cache_salt_is_the_engines() {
        let body = json!({"token_ids": [1], "stop_conditions": {},
                          "routing": {"cache_salt": "a"}});
        assert_eq!(run(body, None).cache_salt, b"a");
    }

    #[test]
    fn whatever_the_numbers_are_a_job_keeps_the_limits() {
        let mut rng = Rng::new(5);
        let number = |rng: &mut Rng| match rng.below(5) {
            0 => Value::Null,
            1 => json!(u32::MAX - rng.below(3) as u32),
            2 => json!(-(rng.below(3) as i64)),
            3 => json!(rng.uniform() * 1e9),
            _ => json!(rng.below(12)),
        };
        let mut runs = 0;
        for _ in 0..20_000 {
            let tokens: Vec<u64> = (0..rng.below(9)).map(|_| rng.below(10)).collect();
            let mut body = json!({"token_ids": tokens, "sampling_options": {},
                                  "stop_conditions": {"max_tokens": number(&mut rng)}});
            let fields = ["top_k", "seed", "presence_penalty", "temperature", "n"];
            for field in fields.into_iter().filter(|_| rng.below(8) == 0).collect::<Vec<_>>() {
                body["sampling_options"][field] = number(&mut rng);
            }
            let Ok(request) = serde_json::from_value(body) else { continue };
            let whole = number(&mut rng).to_string();
            let metadata = BTreeMap::from([(MAX_TOKENS_KEY.to_owned(), whole)]);
            let Ok(Job::Run(request)) = job(request, &metadata, "an id", &LIMITS) else { continue };
            let generated = request.generated as usize;
            assert!(generated == 0 || generated < request.prompt.len());
            assert!(request.max_tokens > request.generated);
            runs += 1;
        }
        assert!(runs > 2000, "{runs}");
    }
}
