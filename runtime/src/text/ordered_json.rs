//! JSON that keeps the order of an object's members, as a prompt has them in the client's order.

use std::fmt;

use indexmap::IndexMap;
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// The members of an object, in their order.
pub type OrderedMembers = IndexMap<String, OrderedJson>;

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    /// The text of a string.
    pub fn as_text(&self) -> Option<&str> {
        if let OrderedJson::Text(text) = self { Some(text) } else { None }
    }

    /// The members of an object.
    pub fn as_object(&self) -> Option<&OrderedMembers> {
        if let OrderedJson::Object(members) = self { Some(members) } else { None }
    }

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

/// The value as JSON, in one line.
impl fmt::Display for OrderedJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&json)
    }
}

// Not derived: of an untagged enum serde keeps a copy at each level.
impl<'de> Deserialize<'de> for OrderedJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = OrderedJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<OrderedJson, E> {
        let number = Number::from_f64(value);
        number.map(OrderedJson::Number).ok_or_else(|| E::custom("the number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<OrderedJson, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(OrderedJson::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<OrderedJson, A::Error> {
        let mut object = OrderedMembers::new();
        while let Some((name, value)) = members.next_entry()? {
            object.insert(name, value);
        }
        Ok(OrderedJson::Object(object))
    }
}

/// `members` with `change` applied to each string in them, names included.
pub(super) fn map_members(
    members: &OrderedMembers,
    change: &impl Fn(&str) -> String,
) -> OrderedMembers {
    members.iter().map(|(name, value)| (change(name), value.map_texts(change))).collect()
}
