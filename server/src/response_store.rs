//! Responses that later requests can go on from (`previous_response_id`), up to a bound.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use trail_runtime::text::ChatMessage;

/// Responses at the most.
const MAX_RESPONSES: usize = 1000;
/// Bytes of all texts at the most.
const MAX_BYTES: usize = 64 << 20;
/// Bytes of a response beside its texts: the names and numbers of its object.
const OBJECT_BYTES: usize = 2 << 10;

/// A response, with the conversation that led to it.
pub(crate) struct StoredResponse {
    /// Name of the key that asked for it; `None` on a server without keys.
    pub owner: Option<String>,
    /// All turns, the response's own at the end, without instructions.
    pub turns: Vec<ChatMessage>,
    /// The object that was sent.
    pub object: Value,
}

impl StoredResponse {
    /// The turns once more for the text of the object.
    fn bytes(&self) -> usize {
        let turn = |turn: &ChatMessage| {
            let content = turn.content.as_ref().map_or(0, String::len);
            let other: usize = turn.other.values().map(|value| value.to_string().len()).sum();
            size_of::<ChatMessage>() + 2 * (content + other)
        };
        OBJECT_BYTES + self.turns.iter().map(turn).sum::<usize>()
    }
}

/// The responses; the oldest go first.
pub(crate) struct ResponseStore {
    responses: Mutex<Responses>,
    max_bytes: usize,
}

#[derive(Default)]
struct Responses {
    by_id: HashMap<String, Arc<StoredResponse>>,
    oldest_first: VecDeque<String>,
    bytes: usize,
}

impl Responses {
    fn remove(&mut self, id: &str) -> Option<Arc<StoredResponse>> {
        let response = self.by_id.remove(id)?;
        self.bytes -= response.bytes();
        Some(response)
    }
}

impl Default for ResponseStore {
    fn default() -> Self {
        ResponseStore { responses: Mutex::default(), max_bytes: MAX_BYTES }
    }
}

impl ResponseStore {
    fn lock(&self) -> MutexGuard<'_, Responses> {
        self.responses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `response`, and drops the oldest ones beyond the bounds.
    pub(crate) fn insert(&self, id: String, response: StoredResponse) {
        let mut responses = self.lock();
        responses.bytes += response.bytes();
        responses.oldest_first.push_back(id.clone());
        responses.by_id.insert(id, Arc::new(response));
        while responses.bytes > self.max_bytes || responses.oldest_first.len() > MAX_RESPONSES {
            // One that was deleted has left its id.
            let Some(oldest) = responses.oldest_first.pop_front() else { break };
            responses.remove(&oldest);
        }
    }

    /// The response `id`, if `owner` asked for it.
    pub(crate) fn get(&self, id: &str, owner: Option<&str>) -> Option<Arc<StoredResponse>> {
        let response = self.lock().by_id.get(id).cloned();
        response.filter(|response| response.owner.as_deref() == owner)
    }

    /// Drops the response `id` of `owner`. Returns false if there is none.
    pub(crate) fn delete(&self, id: &str, owner: Option<&str>) -> bool {
        let is_theirs = self.get(id, owner).is_some();
        is_theirs && self.lock().remove(id).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(owner: &str, text: &str) -> StoredResponse {
        let turns = vec![ChatMessage::new("assistant", text)];
        StoredResponse { owner: Some(owner.into()), turns, object: Value::Null }
    }

    /// Responses, and bytes of their texts.
    fn size(store: &ResponseStore) -> (usize, usize) {
        let responses = store.lock();
        (responses.by_id.len(), responses.bytes)
    }

    #[test]
    fn a_response_is_its_owners_until_it_is_deleted() {
        let store = ResponseStore::default();
        store.insert("1".into(), response("a", "x"));
        let text = |id, owner| store.get(id, owner)?.turns[0].content.clone();
        assert_eq!(text("1", Some("a")).as_deref(), Some("x"));
        assert_eq!(
            (text("1", Some("b")), text("1", None), text("2", Some("a"))),
            (None, None, None)
        );
        assert!(!store.delete("1", Some("b")) && store.delete("1", Some("a")));
        assert!(!store.delete("1", Some("a")));
        assert_eq!(store.lock().bytes, 0);
    }

    #[test]
    fn the_oldest_go_beyond_the_bounds() {
        let store = ResponseStore::default();
        for id in 0..MAX_RESPONSES + 5 {
            store.insert(id.to_string(), response("a", "x"));
        }
        assert_eq!(store.lock().by_id.len(), MAX_RESPONSES);
        assert!(store.get("4", Some("a")).is_none() && store.get("5", Some("a")).is_some());
        let store = ResponseStore { max_bytes: 20_000, ..ResponseStore::default() };
        for id in 0..10 {
            store.insert(id.to_string(), response("a", &"x".repeat(2000)));
        }
        let (count, bytes) = size(&store);
        assert!((2..5).contains(&count) && bytes <= 20_000, "{count} responses, {bytes} bytes");
        store.insert("large".into(), response("a", &"x".repeat(20_000)));
        assert_eq!(size(&store), (0, 0));
    }
}
