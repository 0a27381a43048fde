//! The turns of a conversation.

use serde_json::{Value, json};
use trail_runtime::text::ChatMessage;

/// A system message, and messages with their answers.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    system: Option<String>,
    /// Each message of the user with its answer.
    turns: Vec<(String, String)>,
}

impl Conversation {
    /// A conversation without turns.
    pub fn new(system: Option<String>) -> Conversation {
        Conversation { system, turns: Vec::new() }
    }

    /// Replaces the system message; an empty one removes it.
    pub fn set_system(&mut self, text: String) {
        self.system = Some(text).filter(|text| !text.is_empty());
    }

    /// Removes all turns. The system message stays.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// Number of turns.
    pub fn turns(&self) -> usize {
        self.turns.len()
    }

    /// The user's message of the last turn.
    pub fn last_message(&self) -> Option<&str> {
        self.turns.last().map(|(message, _)| message.as_str())
    }

    /// Makes `message` with its answer turn number `turn`, the last one.
    pub fn answered(&mut self, turn: usize, message: String, answer: String) {
        self.turns.truncate(turn);
        self.turns.push((message, answer));
    }

    /// The system message and the first `turns` turns.
    pub fn messages(&self, turns: usize) -> Vec<ChatMessage> {
        let said = |role: &str, text: &str| ChatMessage { role: role.into(), content: text.into() };
        let system = self.system.iter().map(|text| said("system", text));
        let turns = self.turns[..turns].iter();
        let turns =
            turns.flat_map(|(message, answer)| [said("user", message), said("assistant", answer)]);
        system.chain(turns).collect()
    }

    /// All messages in OpenAI's form.
    pub fn json(&self) -> Value {
        json!(self.messages(self.turns.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retried_turn_replaces_the_last_one() {
        let mut talk = Conversation::new(Some("Be brief.".into()));
        talk.answered(0, "a".into(), "b".into());
        talk.answered(1, "c".into(), "d".into());
        talk.answered(1, "c".into(), "e".into());
        let texts = |talk: &Conversation, turns| -> Vec<String> {
            talk.messages(turns).into_iter().map(|message| message.content).collect()
        };
        assert_eq!(texts(&talk, 2), ["Be brief.", "a", "b", "c", "e"]);
        assert_eq!(texts(&talk, 1), ["Be brief.", "a", "b"]);
        assert_eq!(talk.json()[4], json!({ "role": "assistant", "content": "e" }));
        talk.set_system(String::new());
        talk.clear();
        assert_eq!((talk.turns(), talk.json()), (0, json!([])));
    }
}
