//! The members of a JSON object.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// The members of an object, unparsed: of a long body only the members that are looked at are
/// parsed.
pub type Members = BTreeMap<String, Box<RawValue>>;

/// The member `name`; `None` also for one that has another type.
pub fn get<T: DeserializeOwned>(members: &Members, name: &str) -> Option<T> {
    serde_json::from_str(members.get(name)?.get()).ok()
}

/// The object `name`, empty where it is missing; `None` where something else is in its place.
pub fn object(members: &Members, name: &str) -> Option<Members> {
    let Some(raw) = members.get(name) else { return Some(Members::new()) };
    serde_json::from_str::<Option<Members>>(raw.get()).ok().map(Option::unwrap_or_default)
}
