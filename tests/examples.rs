//! Runs the examples as tests.

#[path = "../examples/embed.rs"]
#[allow(unreachable_pub)]
mod embed;
#[path = "../examples/simulate_policies.rs"]
#[allow(unreachable_pub)]
mod simulate_policies;

#[test]
fn the_embedding_example_answers() {
    embed::main().expect("an answer");
}

#[test]
fn the_example_compares_three_policies_and_its_own() {
    simulate_policies::main().expect("four runs");
}
