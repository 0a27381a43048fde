//! The turns of a conversation.

use serde_json::{Value, json};
use trail_runtime::text::ChatMessage;

/// A system message, and messages with their answers.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    system: Option<String>,
    /// Each message of the user with its answer.
    turns: Vec<(String, String)>,
    /// The last message, if it has no answer: it is no turn.
    pending: Option<String>,
}

impl Conversation {
    /// A conversation without turns.
    pub fn new(system: Option<String>) -> Conversation {
        Conversation { system, ..Conversation::default() }
    }

    /// Replaces the system message; an empty one removes it.
    pub fn set_system(&mut self, text: String) {
        self.system = Some(text).filter(|text| !text.is_empty());
    }

    /// Removes all turns. The system message stays.
    pub fn clear(&mut self) {
        self.turns.clear();
        self.pending = None;
    }

    /// Number of turns.
    pub fn turns(&self) -> usize {
        self.turns.len()
    }

    /// The user's last message, and the number of the turn that it makes with its answer.
    pub fn last_message(&self) -> Option<(usize, &str)> {
        let turns = self.turns.len();
        let answered = || self.turns.last().map(|(message, _)| (turns - 1, message.as_str()));
        self.pending.as_deref().map(|message| (turns, message)).or_else(answered)
    }

    /// Notes `message`, which is to be answered as turn number `turn`.
    pub fn asked(&mut self, turn: usize, message: &str) {
        self.pending = (turn == self.turns.len()).then(|| message.into());
    }

    /// Makes `message` with its answer turn number `turn`, the last one.
    pub fn answered(&mut self, turn: usize, message: String, answer: String) {
        self.turns.truncate(turn);
        self.turns.push((message, answer));
        self.pending = None;
    }

    /// The system message and the first `turns` turns.
    pub fn messages(&self, turns: usize) -> Vec<ChatMessage> {
        let chat_message = |role: &str, text: &str| ChatMessage::new(role, text);
        let system = self.system.iter().map(|text| chat_message("system", text));
        let turns = self.turns[..turns].iter();
        let turns = turns.flat_map(|(message, answer)| {
            [chat_message("user", message), chat_message("assistant", answer)]
        });
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
            talk.messages(turns).into_iter().filter_map(|message| message.content).collect()
        };
        assert_eq!(texts(&talk, 2), ["Be brief.", "a", "b", "c", "e"]);
        assert_eq!(texts(&talk, 1), ["Be brief.", "a", "b"]);
        assert_eq!(talk.json()[4], json!({ "role": "assistant", "content": "e" }));
        // A message without an answer comes first; the answer to the turn before it stays.
        assert_eq!(talk.last_message(), Some((1, "c")));
        talk.asked(2, "f");
        assert_eq!((talk.last_message(), talk.turns()), (Some((2, "f")), 2));
        talk.answered(2, "f".into(), "g".into());
        talk.asked(2, "f");
        assert_eq!(talk.last_message(), Some((2, "f")), "its answer stays until there is another");
        talk.asked(3, "h");
        talk.set_system(String::new());
        talk.clear();
        assert_eq!(talk.last_message(), None);
        assert_eq!((talk.turns(), talk.json()), (0, json!([])));
    }
}
