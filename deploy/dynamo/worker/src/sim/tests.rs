use trail_runtime::engine::{BlockHash, StoredBlock};

use super::*;

fn engine_with(sink: Box<dyn BlockSink>) -> SimEngine {
    let scheduler =
        SchedulerConfig { max_running: 2, cached_blocks: 1024, ..SchedulerConfig::default() };
    let cost = StepCost {
        fixed: 1e5,
        decode_row: 0.0,
        prefill_token: 0.0,
        context_token: 0.0,
        experts: None,
    };
    SimEngine::start(SimSettings {
        scheduler,
        policy: PolicyKind::trail(0.8),
        cost,
        noise: Noise::Oracle,
        alphabet: (100..110).collect(),
        block_sink: sink,
        break_after: None,
    })
    .expect("valid sizes")
}

const STEP: Duration = Duration::from_millis(1);

/// Hears of the number of blocks that are found.
#[derive(Clone, Debug, Default)]
struct Count(Arc<AtomicU32>);

impl BlockSink for Count {
    fn stored(&mut self, _: StoredBlock<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn removed(&mut self, _: BlockHash) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn engine() -> SimEngine {
    engine_with(Box::<Count>::default())
}

fn tokens(answer: &mut UnboundedReceiver<Event>) -> Vec<u32> {
    let mut tokens = Vec::new();
    loop {
        match answer.blocking_recv().expect("it ends") {
            Event::Token { id, .. } => tokens.push(id),
            Event::Finished { reason } => {
                assert_eq!(reason, FinishReason::Length);
                return tokens;
            }
            _ => {}
        }
    }
}

#[test]
fn a_token_depends_on_its_position_alone() {
    let engine = engine();
    let (initial, mut answer) = engine.submit(Request::new(vec![1; 7], 6)).expect("fits");
    assert_eq!(initial, Some(6.0));
    assert_eq!(tokens(&mut answer), [107, 108, 109, 100, 101, 102]);
    let moved = Request { generated: 4, ..Request::new(vec![1; 11], 6) };
    let (_, mut answer) = engine.submit(moved).expect("fits");
    assert_eq!(tokens(&mut answer), [101, 102]);
}

#[test]
fn a_dropped_answer_frees_its_slot() {
    let engine = engine();
    let long = || engine.submit(Request::new(vec![1; 7], 4000)).expect("fits").1;
    let dropped = [long(), long()];
    drop(dropped);
    let (_, mut answer) = engine.submit(Request::new(vec![1; 7], 3)).expect("fits");
    assert_eq!(tokens(&mut answer).len(), 3);
}

#[test]
fn a_turn_finds_the_turn_before() {
    let found = Count::default();
    let engine = engine_with(Box::new(found.clone()));
    let mut prompt: Vec<u32> = (0..50).collect();
    for (blocks, hits) in [(4, 0), (6, 64)] {
        let before = engine.prompts().cached;
        let (_, mut answer) = engine.submit(Request::new(prompt.clone(), 20)).expect("fits");
        prompt.extend(tokens(&mut answer));
        assert_eq!(engine.prompts().cached - before, hits);
        let is_heard = || found.0.load(Ordering::Relaxed) == blocks;
        (0..1000).take_while(|_| !is_heard()).for_each(|_| thread::sleep(STEP));
        assert!(is_heard(), "{found:?}");
        prompt.extend(200..216);
    }
    assert_eq!(engine.prompts().tokens, 50 + 86);
}
