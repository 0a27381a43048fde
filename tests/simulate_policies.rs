//! Runs the example of the simulator as a test.

#[path = "../examples/simulate_policies.rs"]
#[allow(unreachable_pub)]
mod simulate_policies;

#[test]
fn the_example_compares_three_policies_and_its_own() {
    simulate_policies::main().expect("four runs");
}
