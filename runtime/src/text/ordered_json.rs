//! JSON that keeps the order of an object's members, as a prompt has them in the client's order.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Number;

/// The members of an object, in their order.
pub type OrderedMembers = IndexMap<String, OrderedJson>;

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OrderedJson {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<OrderedJson>),
    /// An object.
    Object(OrderedMembers),
}

impl OrderedJson {
    /// The value with `change` applied to each string in it, names of members included.
    pub(super) fn map_texts(&self, change: &impl Fn(&str) -> String) -> OrderedJson {
        match self {
            OrderedJson::Text(text) => OrderedJson::Text(change(text)),
            OrderedJson::List(items) => {
                OrderedJson::List(items.iter().map(|item| item.map_texts(change)).collect())
            }
            OrderedJson::Object(members) => OrderedJson::Object(map_members(members, change)),
            other => other.clone(),
        }
    }
}

/// `members` with `change` applied to each string in them, names included.
pub(super) fn map_members(
    members: &OrderedMembers,
    change: &impl Fn(&str) -> String,
) -> OrderedMembers {
    members.iter().map(|(name, value)| (change(name), value.map_texts(change))).collect()
}
