//! `contains`, `uniqueItems` and `unevaluatedItems`.

use serde_json::{json, Map, Value};

use super::{taken, Expander, APPLYING, NO_EXCLUSION};
use crate::constraint::disjoint::is_same;
use crate::constraint::limits::{MOST_ARRANGED, MOST_CONTAINED};
use crate::constraint::outside::{any, both, size};
use crate::constraint::schema::{at, moved, wrong};
use crate::error::Result;

type Object = Map<String, Value>;

impl Expander<'_> {
    /// `contains`: the first items fit it, and with `maxContains` no others.
    pub(super) fn contain(&mut self, fields: &mut Object, outer: &str) -> Result<()> {
        let Some(wanted) = taken(fields, "contains", outer)? else { return Ok(()) };
        let path = at(outer, "contains");
        let mut count = |name: &str| fields.shift_remove(name).map(|count| count.as_f64().unwrap_or(f64::NAN));
        let (least, most) = (count("minContains").unwrap_or(1.0), count("maxContains"));
        if !(0.0..=MOST_CONTAINED as f64).contains(&least) || most.is_some_and(|most| most < least) {
            return Err(wrong(
                &path,
                format!("minContains must be at most {MOST_CONTAINED}, and maxContains at least minContains"),
            ));
        }
        if fields.contains_key("prefixItems") || fields.get("items").is_some_and(Value::is_array) {
            return Err(wrong(&path, "not supported beside a list of items (prefixItems)"));
        }
        let items = fields.get("items").unwrap_or(&Value::Bool(true));
        self.spend((least as usize + 1) * (size(&wanted) + size(items)), &path)?;
        let items = moved(items.clone(), &at(outer, "items"));
        let first = both(wanted.clone(), items.clone());
        if most.is_some() {
            let others = self.outside(&Object::new(), &[&items], &wanted).ok_or_else(|| wrong(&path, NO_EXCLUSION))?;
            fields.insert("items".to_owned(), both(items, any(others)));
        }
        if least > 0.0 {
            let rest = fields.insert("items".to_owned(), Value::Array(vec![first; least as usize]));
            fields.extend(rest.map(|rest| ("additionalItems".to_owned(), rest)));
            let other = fields.get("minItems").and_then(Value::as_u64).unwrap_or(0);
            fields.insert("minItems".to_owned(), Value::from(other.max(least as u64)));
        }
        Ok(())
    }

    /// `uniqueItems` where the items have few values: all arrangements of them, or those in the order of the schema.
    pub(super) fn keep_apart(&mut self, fields: &mut Object, path: &str) -> Result<Option<Value>> {
        if fields.get("uniqueItems") != Some(&Value::Bool(true)) {
            return Ok(None);
        }
        let most = fields.get("maxItems").and_then(Value::as_u64);
        if most.is_some_and(|most| most <= 1) {
            fields.shift_remove("uniqueItems");
            return Ok(None);
        }
        let path = at(path, "uniqueItems");
        let unknown = || {
            wrong(&path, format!(
                "only supported for items with few values (enum, const, boolean; at most {MOST_ARRANGED} lists of them), \
                 without prefixItems or contains; a smaller maxItems, or an object with a boolean per value, may help"
            ))
        };
        if fields.contains_key("prefixItems") || fields.contains_key("contains") {
            return Err(unknown());
        }
        let items = fields.get("items").map(|items| self.resolved(items)).ok_or_else(unknown)?;
        let mut values: Vec<Value> = Vec::new();
        let constant = items.get("const").map(std::slice::from_ref);
        let listed = items.get("enum").and_then(Value::as_array).map(Vec::as_slice);
        let is_boolean = items.get("type").is_some_and(|kind| kind == "boolean");
        let booleans = [true, false].map(Value::Bool);
        let given = constant.or(listed).or(is_boolean.then_some(&booleans));
        for value in given.filter(|given| given.len() <= MOST_ARRANGED).ok_or_else(unknown)? {
            if !values.iter().any(|other| is_same(value, other)) {
                values.push(value.clone());
            }
        }
        let least = fields.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
        let most = most.map_or(values.len(), |most| values.len().min(most as usize));
        let arranged = arrangements(values.len(), least, most, true)
            .or_else(|| arrangements(values.len(), least, most, false))
            .ok_or_else(unknown)?;
        let sizes: Vec<usize> = values.iter().map(size).collect();
        self.spend(arranged.iter().flatten().map(|&place| sizes[place]).sum(), &path)?;
        let list = |places: Vec<usize>| places.into_iter().map(|place| values[place].clone()).collect();
        let arranged: Vec<Value> = arranged.into_iter().map(list).collect();
        fields.shift_remove("uniqueItems");
        let others = json!({ "type": ["null", "boolean", "number", "string", "object"] });
        Ok(Some(json!({ "anyOf": [{ "enum": arranged }, others] })))
    }
}

/// Lists of `least` to `most` different numbers below `count`, in any order or ascending; None if they are too many.
fn arrangements(count: usize, least: usize, most: usize, in_any_order: bool) -> Option<Vec<Vec<usize>>> {
    let (mut found, mut last): (Vec<Vec<usize>>, Vec<Vec<usize>>) = (Vec::new(), vec![Vec::new()]);
    for length in 0..=most {
        let mut longer = Vec::new();
        for list in last.iter().filter(|_| length < most) {
            let start = if in_any_order { 0 } else { list.last().map_or(0, |last| last + 1) };
            for next in (start..count).filter(|next| !list.contains(next)) {
                longer.push(list.iter().copied().chain([next]).collect());
            }
        }
        found.extend(last.into_iter().filter(|_| length >= least));
        if found.len() > MOST_ARRANGED || longer.len() > MOST_ARRANGED {
            return None;
        }
        last = longer;
    }
    Some(found)
}

/// `unevaluatedItems` where no other schema applies to the value: then it means what `items` does.
pub(super) fn close(fields: &mut Object) {
    let is_applied = APPLYING.iter().any(|name| fields.contains_key(*name)) || fields.contains_key("contains");
    if !is_applied && !fields.get("items").is_some_and(Value::is_array) {
        if let Some(rest) = fields.shift_remove("unevaluatedItems") {
            fields.entry("items").or_insert(rest);
        }
    }
}
