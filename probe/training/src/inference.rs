//! Distributions of a trained head for collected answers.

use trail_probe::Head;

/// The distributions `[rows][bins]` of `head` for one answer to a prompt of `prompt_tokens` tokens:
/// `activations` `[rows, d]` after so many `generated` tokens each, the mean over the prompt first.
pub fn of_answer(
    head: &Head,
    prompt_tokens: u32,
    generated: &[u32],
    activations: &[f32],
) -> Vec<Vec<f32>> {
    assert_eq!(generated.first(), Some(&0), "the prompt comes first");
    let prompt = Some((&activations[..head.d()], prompt_tokens));
    let all = head.distributions(activations, generated, prompt);
    all.chunks_exact(head.bins()).map(<[f32]>::to_vec).collect()
}
