//! Constraints: answers keep to them, whatever the policy, the memory and the speculation; requests
//! without one have the answers that they have alone.

use super::prefix::{Answer, collect, large, without_counts};
use super::*;
use crate::backend::TokenMask;
use crate::engine::{Constraint, ConstraintFault, Matcher, Speculate, SubmitError};

const END: u32 = 49;

/// Answers in which `free` tokens, each of the residue class (mod 3) after the last one's, are
/// followed by the tokens of `run`, over and over, `length` tokens in all.
#[derive(Clone)]
struct Rule {
    free: usize,
    run: Vec<u32>,
    length: usize,
    /// False: forced tokens come as masks of one.
    forces: bool,
    /// Number of tokens after which the matcher fails, and if it does so by a panic.
    fails: Option<(usize, bool)>,
}

impl Rule {
    fn new(free: usize, run: &[u32], length: usize) -> Rule {
        Rule { free, run: run.to_vec(), length, forces: true, fails: None }
    }

    /// The only token that may follow, or a residue class.
    fn next(&self, tokens: &[u32]) -> Result<u32, u32> {
        let place = tokens.len() % (self.free + self.run.len());
        match () {
            _ if tokens.len() >= self.length => Ok(END),
            _ if place >= self.free => Ok(self.run[place - self.free]),
            _ => Err((tokens.last().copied().unwrap_or(0) + 1) % 3),
        }
    }

    fn check(&self, tokens: &[u32]) {
        for at in 0..tokens.len() {
            match self.next(&tokens[..at]) {
                Ok(only) => assert_eq!(tokens[at], only, "at {at} of {tokens:?}"),
                Err(class) => assert_eq!(tokens[at] % 3, class, "at {at} of {tokens:?}"),
            }
        }
    }
}

struct RuleMatcher {
    rule: Rule,
    ends: Vec<u32>,
    tokens: Vec<u32>,
}

impl Constraint for Rule {
    fn matcher(&self, ends: &[u32]) -> Box<dyn Matcher> {
        Box::new(RuleMatcher { rule: self.clone(), ends: ends.to_vec(), tokens: Vec::new() })
    }
}

impl Matcher for RuleMatcher {
    fn accept(&mut self, token: u32) -> Result<(), ConstraintFault> {
        self.tokens.push(token);
        match self.rule.fails {
            Some((after, panics)) if self.tokens.len() == after => {
                assert!(!panics, "a planned panic");
                Err(ConstraintFault::Refused("planned".into()))
            }
            _ => Ok(()),
        }
    }

    fn force(&mut self, forced: &mut Vec<u32>) -> Result<(), ConstraintFault> {
        while let Ok(only) = self.rule.next(&self.tokens)
            && self.rule.forces
            && self.tokens.last() != Some(&END)
        {
            forced.push(only);
            self.accept(only)?;
        }
        Ok(())
    }

    fn mask(&mut self) -> Result<TokenMask, ConstraintFault> {
        let mut mask = TokenMask::none(model().config.vocab_size);
        match self.rule.next(&self.tokens) {
            Ok(only) => mask.allow(only),
            Err(class) => {
                let is_allowed = |id: &u32| id % 3 == class && !self.ends.contains(id);
                (0..END).filter(is_allowed).for_each(|id| mask.allow(id));
            }
        }
        Ok(mask)
    }
}

/// Six requests: the ones with an odd number have a rule of `forces`, unless they are left out.
fn requests(forces: bool, constrained: bool) -> Vec<(Request, Option<Rule>)> {
    let request = |of: u32| {
        let prompt = (0..20 + of).map(|at| (at * 7 + of) % 50).collect();
        let mut request = Request::new(prompt, 30 + of);
        request.sampling.seed = of.into();
        request.sampling.temperature = [0.0, 0.0, 1.0, 1.0][of as usize % 4];
        request.sampling.repetition_penalty = [1.0, 1.2][of as usize / 2 % 2];
        request.sampling.top_k = [0, 5][of as usize / 4 % 2];
        request.sampling.top_logprobs = 2;
        request.ignore_eos = true;
        request.stop_tokens = vec![END];
        request.true_length = Some(request.max_tokens);
        let rule =
            Rule { forces, ..Rule::new(1 + of as usize, &[3, 3, 7, 1, 9], 20 + of as usize) };
        let rule = (of % 2 == 1).then_some(rule);
        request.constraint = rule.clone().map(|rule| Arc::new(rule) as Arc<dyn Constraint>);
        (request, rule)
    };
    (0..6).map(request).filter(|(_, rule)| constrained || rule.is_none()).collect()
}

fn answers(engine: &Engine, requests: Vec<(Request, Option<Rule>)>) -> Vec<Answer> {
    let submit = |(request, rule)| (engine.submit(request).unwrap(), rule);
    let handles: Vec<(RequestHandle, Option<Rule>)> = requests.into_iter().map(submit).collect();
    let answer = |(handle, rule): &(RequestHandle, Option<Rule>)| {
        let answer = collect(handle);
        if let Some(rule) = rule {
            rule.check(&answer.tokens);
            assert_eq!(answer.tokens.len(), rule.length + 1, "{answer:?}");
        }
        answer
    };
    let answers = handles.iter().map(answer).collect();
    empty(engine);
    answers
}

#[test]
fn answers_keep_to_their_constraints_under_every_policy() {
    let model = model();
    let expected = answers(&engine(&model, large(PolicyKind::Fcfs)), requests(false, true));
    let expected = without_counts(expected);
    let alone = answers(&engine(&model, large(PolicyKind::Fcfs)), requests(false, false));
    for (with, alone) in expected.iter().step_by(2).zip(&without_counts(alone)) {
        assert_eq!(with, alone, "a request without a constraint");
    }
    for (name, _) in PolicyKind::HELP {
        for (kv_blocks, speculate, forces) in [
            (14, Speculate::Ngram, true),
            (400, Speculate::Off, true),
            (400, Speculate::Auto, false),
            (400, Speculate::Auto, true),
        ] {
            let config = EngineConfig {
                kv_blocks: Some(kv_blocks),
                speculate,
                cpu: CpuSettings { threads: Some(2), ..CpuSettings::default() },
                replays: true,
                ..config(&model, name.parse().unwrap())
            };
            let engine = engine(&model, config);
            let what = format!("{name}, {kv_blocks} blocks, forces {forces}");
            super::speculation::assert_equal(
                answers(&engine, requests(forces, true)),
                &expected,
                &what,
            );
        }
    }
}

#[test]
fn answers_are_the_same_where_a_step_is_in_flight() {
    let model = model();
    let expected = answers(&engine(&model, large(PolicyKind::Fcfs)), requests(true, true));
    let expected = without_counts(expected);
    for speculate in [Speculate::Off, Speculate::Ngram] {
        let config = EngineConfig { speculate, ..large(PolicyKind::Fcfs) };
        let engine = ahead(&model, config, None);
        let answers = answers(&engine, requests(true, true));
        super::speculation::assert_equal(answers, &expected, "a step is in flight");
    }
}

/// Runs of forced tokens take one step each.
#[test]
fn forced_tokens_take_few_steps() {
    let model = model();
    let run: Vec<u32> = (0..9).map(|at| 7 + at * 4).collect();
    let rule = Rule::new(1, &run, 100);
    let steps = |speculate| {
        let config = EngineConfig { speculate, ..large(PolicyKind::Fcfs) };
        let engine = engine(&model, config);
        let mut request = Request::new(vec![1, 2, 3], 200);
        request.stop_tokens = vec![END];
        request.constraint = Some(Arc::new(rule.clone()));
        let answer = collect(&engine.submit(request).unwrap());
        empty(&engine);
        assert_eq!(answer.tokens.len(), 101);
        (answer.tokens, engine.stats())
    };
    let (tokens, plain) = steps(Speculate::Off);
    let (same, stats) = steps(Speculate::Auto);
    assert_eq!(tokens, same);
    assert!(plain.steps >= 100, "{plain:?}");
    // A run fits where the block has room for it. The row of the token that ends the answer yields
    // none.
    assert!(stats.steps <= 45, "{stats:?}");
    assert_eq!(stats.draft_tokens, stats.accepted_tokens + 1);
}

/// An answer that began on another engine goes on as it would have there.
#[test]
fn an_answer_that_moved_keeps_to_its_constraint() {
    let model = model();
    let rule = Rule::new(3, &[3, 7], 40);
    let request = |prompt: Vec<u32>, generated| {
        let mut request = Request::new(prompt, 60);
        (request.generated, request.stop_tokens) = (generated, vec![END]);
        request.constraint = Some(Arc::new(rule.clone()));
        request
    };
    let engine = engine(&model, large(PolicyKind::Fcfs));
    let whole = collect(&engine.submit(request(vec![1, 2, 3], 0)).unwrap()).tokens;
    for moved in [1, 3, 4, 17] {
        let mut prompt = vec![1, 2, 3];
        prompt.extend(&whole[..moved]);
        let rest = collect(&engine.submit(request(prompt, moved as u32)).unwrap()).tokens;
        assert_eq!(rest, whole[moved..], "after {moved} tokens");
    }
}

#[test]
fn a_faulty_matcher_ends_its_answer_alone() {
    let model = model();
    let engine = engine(&model, large(PolicyKind::Fcfs));
    let request = |fails| {
        let mut request = Request::new(vec![1, 2, 3], 30);
        (request.ignore_eos, request.stop_tokens) = (true, vec![END]);
        let rule = Rule { fails, ..Rule::new(4, &[3], 25) };
        request.constraint = Some(Arc::new(rule));
        engine.submit(request).unwrap()
    };
    let handles = [Some((7, false)), None, Some((8, true))].map(request);
    let [failed, right, panicked] = handles.map(|handle| {
        let answer = answer(&handle);
        (answer.0, answer.1, handle.constraint_fault())
    });
    assert_eq!(failed.2, Some(ConstraintFault::Refused("planned".into())));
    assert_eq!((right.2, panicked.2), (None, Some(ConstraintFault::Panicked)));
    assert_eq!((failed.0.len(), failed.1), (7, FinishReason::Constraint));
    assert_eq!((right.0.len(), right.1), (26, FinishReason::Stop));
    assert_eq!((panicked.0.len(), panicked.1), (8, FinishReason::Constraint));
    assert_eq!(failed.0, right.0[..7]);
    empty(&engine);
}

#[test]
fn a_backend_without_masks_refuses_constraints() {
    let model = model();
    let engine = ahead(&model, large(PolicyKind::Fcfs), Some(Breaks::TakesNoMasks));
    let mut request = Request::new(vec![1, 2, 3], 30);
    request.constraint = Some(Arc::new(Rule::new(1, &[2], 9)));
    let refused = engine.submit(request).err();
    assert!(
        matches!(&refused, Some(SubmitError::Constraint(why)) if why.contains("no constraints"))
    );
}
