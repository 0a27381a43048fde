//! The document's schemas, from the types that serde reads and writes.

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// Schemas by name.
#[derive(Default)]
pub(crate) struct Schemas(Map<String, Value>);

impl Schemas {
    /// A reference to the schema of `T`.
    pub(crate) fn of<T: ToSchema>(&mut self) -> Value {
        self.named::<T>(&T::name())
    }

    /// A reference to the schema of `T`, by another name than the type's.
    pub(crate) fn named<T: ToSchema>(&mut self, name: &str) -> Value {
        let schema = self.fields::<T>();
        self.add(name, schema)
    }

    /// The schema of `T` itself; those that it refers to are kept by their names.
    pub(crate) fn fields<T: ToSchema>(&mut self) -> Value {
        let mut inner = Vec::new();
        T::schemas(&mut inner);
        for (name, schema) in inner {
            self.add(&name, json!(schema));
        }
        json!(T::schema())
    }

    /// A reference to an object with the fields of all `parts`, but the `ignored` ones: a body is
    /// read as several types. Other fields are allowed unless all parts refuse them.
    pub(crate) fn request(&mut self, name: &str, parts: Vec<Value>, ignored: &[&str]) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        let is_closed = parts.iter().all(|part| part["additionalProperties"] == false);
        for mut part in parts {
            if let Some(Value::Object(fields)) = part.get_mut("properties").map(Value::take) {
                properties.extend(fields);
            }
            if let Some(Value::Array(names)) = part.get_mut("required").map(Value::take) {
                required.extend(names);
            }
        }
        properties.retain(|name, _| !ignored.contains(&name.as_str()));
        let mut request =
            json!({ "type": "object", "properties": properties, "required": required });
        if is_closed {
            request["additionalProperties"] = false.into();
        }
        self.add(name, request)
    }

    /// A reference to `schema`, which is kept by `name`.
    pub(crate) fn add(&mut self, name: &str, schema: Value) -> Value {
        let other = self.0.insert(name.to_owned(), schema);
        debug_assert!(
            other.is_none_or(|other| self.0[name] == other),
            "two schemas have the name {name}"
        );
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }

    /// All schemas.
    pub(crate) fn into_json(self) -> Value {
        Value::Object(self.0)
    }
}
