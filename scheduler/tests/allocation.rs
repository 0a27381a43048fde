//! After construction nothing allocates: the counting allocator watches 1,000 steps.

use trail_counting_allocator::of_process;
use trail_scheduler::Policy;
use trail_scheduler::bench::Load;
use trail_scheduler::policies::{Fcfs, Oracle, Sjf, Trail};

// One test in this file: another one's thread would be counted as well.
#[test]
fn a_step_allocates_nothing() {
    let policies: [Box<dyn Policy>; 4] =
        [Box::new(Fcfs), Box::new(Sjf), Box::new(Trail::default()), Box::new(Oracle::default())];
    for policy in policies {
        let name = policy.name();
        let mut load = Load::new(policy, 64, 512, 3).unwrap();
        let before = of_process();
        (0..1000).for_each(|_| assert!(load.step() > 0));
        assert_eq!(of_process(), before, "{name}");
    }
}
