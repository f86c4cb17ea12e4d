//! jinja2's list filters.

use std::rc::Rc;

use super::arguments::Given;
use super::ast::Operator;
use super::render::Render;
use super::streams::{Getter, Source, Stream};
use super::value::{List, Value};
use super::{fault, Result};
use crate::control_tokens::{characters, uncut, Parts};

impl Render {
    pub fn filter_of_lists(&self, name: &str, value: &Value, given: &Given) -> Result<Value> {
        let none = || given.bind(name, [], 0).map(|_| ());
        match name {
            "length" | "count" => {
                none()?;
                self.length(value)
            }
            "list" => {
                none()?;
                Ok(Value::List(List::new(self.collect(value)?)?))
            }
            "first" => {
                none()?;
                if let Value::Text(text) = value {
                    self.spend_text(text)?; // which is searched for cuts
                }
                let first = self.next(&mut self.iterate(value)?)?;
                Ok(match (value, first) {
                    (Value::Text(text), Some(Value::Text(first))) => Value::text(Parts::of(text).part(0..first.len())),
                    (_, first) => first.unwrap_or_else(|| Value::undefined("No first item, sequence was empty.")),
                })
            }
            "last" => {
                none()?;
                let last = self.next(&mut self.backwards(value)?)?;
                Ok(match (value, last) {
                    (Value::Text(text), Some(Value::Text(last))) => {
                        Value::text(Parts::of(text).part(text.len() - last.len()..text.len()))
                    }
                    (_, last) => last.unwrap_or_else(|| Value::undefined("No last item, sequence was empty.")),
                })
            }
            "reverse" => {
                none()?;
                match value {
                    Value::Text(_) => self.slice(value, [Value::None, Value::None, Value::Int(-1)]),
                    Value::Stream(_) => {
                        let mut items = self.collect(value)?;
                        items.reverse();
                        Ok(Value::List(List::new(items)?))
                    }
                    _ => Stream::value(self.backwards(value)?, value.depth()),
                }
            }
            "items" => {
                none()?;
                match value {
                    Value::Undefined(_) => Stream::value(Source::Empty, 0),
                    Value::Dict(dict) => {
                        Stream::value(Source::View(dict.clone(), super::value::View::Items, 0), value.depth() + 1)
                    }
                    _ => fault("Can only get item pairs from a mapping."),
                }
            }
            "join" => {
                let [between, attribute] = given.bind(name, ["d", "attribute"], 0)?;
                let between = between.map_or(Ok("".into()), |between| self.text_of(&between))?;
                let getter = self.getter(attribute.as_ref(), None)?;
                let mut items = self.iterate(value)?;
                let (mut out, mut is_first) = (String::new(), true);
                while let Some(item) = self.next(&mut items)? {
                    if !is_first {
                        self.spend_text(&between)?;
                        out.push_str(&between);
                    }
                    self.write(&self.get(&getter, &item)?, &mut out)?;
                    is_first = false;
                }
                Ok(Value::text(out))
            }
            "map" => self.map(value, given),
            "select" | "reject" | "selectattr" | "rejectattr" => self.select(name, value, given),
            "sort" => self.sort(value, given),
            "dictsort" => self.dictsort(value, given),
            "unique" => {
                let [is_exact, attribute] = given.bind(name, ["case_sensitive", "attribute"], 0)?;
                let getter = self.getter(attribute.as_ref(), None)?;
                let (mut seen, mut found) = (std::collections::HashSet::new(), Vec::new());
                for item in self.collect(value)? {
                    let key = self.sort_key(&getter, &item, is_true(&is_exact))?;
                    if seen.insert(self.key(&key)?) {
                        found.push(item);
                    }
                }
                Stream::of(found)
            }
            "min" | "max" => {
                let [is_exact, attribute] = given.bind(name, ["case_sensitive", "attribute"], 0)?;
                let getter = self.getter(attribute.as_ref(), None)?;
                let mut best: Option<(Value, Value)> = None;
                for item in self.collect(value)? {
                    let key = self.sort_key(&getter, &item, is_true(&is_exact))?;
                    let is_better = match &best {
                        None => true,
                        Some((known, _)) if name == "min" => self.compare(&key, known, "<")?.is_lt(),
                        Some((known, _)) => self.compare(&key, known, ">")?.is_gt(),
                    };
                    if is_better {
                        best = Some((key, item));
                    }
                }
                let nothing = || Value::undefined("No aggregated item, sequence was empty.");
                Ok(best.map_or_else(nothing, |(_, item)| item))
            }
            "sum" => {
                let [attribute, start] = given.bind(name, ["attribute", "start"], 0)?;
                let getter = self.getter(attribute.as_ref(), None)?;
                let mut total = start.unwrap_or(Value::Int(0));
                if let Value::Text(_) | Value::Safe(_) = total {
                    return fault("sum() can't sum strings");
                }
                for item in self.collect(value)? {
                    total = self.operate(Operator::Add, &total, &self.get(&getter, &item)?)?;
                }
                Ok(total)
            }
            "groupby" => self.groupby(value, given),
            "batch" => {
                let [count, fill] = given.bind(name, ["linecount", "fill_with"], 1)?;
                let count = usize::try_from(self.optional_whole(name, count)?.unwrap_or(0)).unwrap_or(0);
                let items = self.collect(value)?;
                if count == 0 {
                    return fault("batch of no items is not supported");
                }
                let mut rows = Vec::new();
                for row in items.chunks(count) {
                    let mut row = row.to_vec();
                    if let (true, Some(fill)) = (row.len() < count, fill.as_ref().filter(|f| !matches!(f, Value::None)))
                    {
                        self.spend((count - row.len()) as u64)?;
                        row.resize(count, fill.clone());
                    }
                    rows.push(Value::List(List::new(row)?));
                }
                Stream::of(rows)
            }
            "slice" => {
                let [count, fill] = given.bind(name, ["slices", "fill_with"], 1)?;
                let count = usize::try_from(self.optional_whole(name, count)?.unwrap_or(0)).unwrap_or(0);
                if count == 0 {
                    return fault("no slices are not supported");
                }
                let items = self.collect(value)?;
                self.spend(count as u64)?;
                let (least, more) = (items.len() / count, items.len() % count);
                let (mut rows, mut at) = (Vec::new(), 0);
                for i in 0..count {
                    let end = at + least + usize::from(i < more);
                    let mut row = items[at..end].to_vec();
                    if let (true, Some(fill)) = (i >= more, fill.as_ref().filter(|f| !matches!(f, Value::None))) {
                        row.push(fill.clone());
                    }
                    rows.push(Value::List(List::new(row)?));
                    at = end;
                }
                Stream::of(rows)
            }
            _ => fault(format!("the filter '{name}' is not for chat templates")),
        }
    }

    fn length(&self, value: &Value) -> Result<Value> {
        Ok(Value::Int(match value {
            Value::Undefined(_) => 0,
            Value::Text(text) | Value::Safe(text) => {
                self.spend_text(text)?;
                uncut(text).count() as i64
            }
            Value::List(list) | Value::Tuple(list) => list.items.len() as i64,
            Value::Dict(dict) | Value::View(dict, _) => dict.items.len() as i64,
            Value::Range(range) => range.length,
            Value::Loop(_) => return self.attribute(value, "length"),
            _ => return fault(format!("object of type '{}' has no len()", value.kind())),
        }))
    }

    /// reversed(value)
    fn backwards(&self, value: &Value) -> Result<Source> {
        let length = match value {
            Value::Undefined(_) => return Ok(Source::Empty),
            Value::Text(text) => {
                self.spend_bytes(64 * text.len())?;
                let mut items: Vec<Value> = characters(text).map(Value::text).collect();
                items.reverse();
                return Ok(Source::Owned(items.into_iter()));
            }
            Value::List(list) | Value::Tuple(list) => list.items.len(),
            Value::Dict(dict) | Value::View(dict, _) => dict.items.len(),
            Value::Range(range) => range.length as usize,
            _ => return fault(format!("'{}' object is not reversible", value.kind())),
        };
        Ok(Source::Backwards(value.clone(), length))
    }

    fn map(&self, value: &Value, given: &Given) -> Result<Value> {
        if !value.is_true() {
            return Stream::value(Source::Empty, 0);
        }
        let items = Box::new(self.iterate(value)?);
        let given_depth = |given: &Given| {
            given
                .positional
                .iter()
                .chain(given.named.iter().map(|(_, value)| value))
                .map(Value::depth)
                .max()
                .unwrap_or(0)
        };
        let depth = value.depth().max(given_depth(given));
        if given.positional.is_empty() {
            let named =
                |name: &str| given.named.iter().find(|(known, _)| **known == *name).map(|(_, value)| value.clone());
            let (attribute, default) = (named("attribute"), named("default"));
            if attribute.is_none() || given.named.len() > 1 + usize::from(default.is_some()) {
                return fault("map requires a filter argument");
            }
            return Stream::value(Source::Map(items, self.getter(attribute.as_ref(), default)?), depth);
        }
        let Value::Text(name) = &given.positional[0] else { return fault("map needs the name of a filter") };
        let rest = Given { positional: given.positional[1..].to_vec(), named: given.named.clone() };
        Stream::value(Source::Filter(items, name.clone(), rest), depth)
    }

    fn select(&self, name: &str, value: &Value, given: &Given) -> Result<Value> {
        if !value.is_true() {
            return Stream::value(Source::Empty, 0);
        }
        let source = Box::new(self.iterate(value)?);
        let mut rest = given.positional.as_slice();
        let mut attribute = None;
        let depth = rest.iter().map(Value::depth).max().unwrap_or(0).max(value.depth());
        if name.ends_with("attr") {
            let Some((first, more)) = rest.split_first() else { return fault("Missing parameter for attribute name") };
            attribute = Some(self.getter(Some(first), None)?);
            rest = more;
        }
        let test = match rest.split_first() {
            None if given.named.is_empty() => None,
            None => return fault("a test is needed"),
            Some((Value::Text(test), more)) => {
                Some((test.clone(), Given { positional: more.to_vec(), named: given.named.clone() }))
            }
            Some(_) => return fault("the name of a test is needed"),
        };
        Stream::value(Source::Select { source, attribute, test, negated: name.starts_with("reject") }, depth)
    }

    /// The value to compare: in lower case if case does not matter.
    fn sort_key(&self, getter: &Getter, item: &Value, is_exact: bool) -> Result<Value> {
        match self.get(getter, item)? {
            Value::Text(text) if !is_exact => self.cased(&text, "lower"),
            value => Ok(value),
        }
    }

    fn sort(&self, value: &Value, given: &Given) -> Result<Value> {
        let names = ["reverse", "case_sensitive", "attribute"];
        let [is_reverse, is_exact, attribute] = given.bind("sort", names, 0)?;
        let mut getters = Vec::new();
        match &attribute {
            Some(Value::Text(text)) => {
                for part in text.split(',') {
                    self.spend(1)?;
                    getters.push(self.getter(Some(&Value::text(part)), None)?);
                }
            }
            attribute => getters.push(self.getter(attribute.as_ref(), None)?),
        }
        let mut keyed = Vec::new();
        for item in self.collect(value)? {
            let mut keys = Vec::new();
            for getter in &getters {
                keys.push(self.sort_key(getter, &item, is_true(&is_exact))?);
            }
            keyed.push((Value::List(List::new(keys)?), item));
        }
        let sorted = self.sorted(keyed, is_true(&is_reverse), &|a, b| Ok(self.compare(&a.0, &b.0, "<")?.is_lt()))?;
        Ok(Value::List(List::new(sorted.into_iter().map(|(_, item)| item).collect())?))
    }

    fn dictsort(&self, value: &Value, given: &Given) -> Result<Value> {
        let [is_exact, by, is_reverse] = given.bind("dictsort", ["case_sensitive", "by", "reverse"], 0)?;
        let by = self.optional_text("dictsort", by)?.unwrap_or_else(|| "key".into());
        let at = match &*by {
            "key" => 0,
            "value" => 1,
            _ => return fault("You can only sort by either \"key\" or \"value\""),
        };
        let Value::Dict(dict) = value else { return fault("dictsort needs a dict") };
        let mut keyed = Vec::new();
        let whole = Getter { parts: Vec::new(), default: None };
        for (name, value) in dict.items.values() {
            self.spend(1)?;
            let key = self.sort_key(&whole, if at == 0 { name } else { value }, is_true(&is_exact))?;
            keyed.push((key, Value::view_item(name, value, super::value::View::Items)));
        }
        let sorted = self.sorted(keyed, is_true(&is_reverse), &|a, b| Ok(self.compare(&a.0, &b.0, "<")?.is_lt()))?;
        Ok(Value::List(List::new(sorted.into_iter().map(|(_, item)| item).collect())?))
    }

    fn groupby(&self, value: &Value, given: &Given) -> Result<Value> {
        let [attribute, default, is_exact] = given.bind("groupby", ["attribute", "default", "case_sensitive"], 1)?;
        let getter = self.getter(attribute.as_ref(), default)?;
        let mut keyed = Vec::new();
        for item in self.collect(value)? {
            keyed.push((self.sort_key(&getter, &item, is_true(&is_exact))?, item));
        }
        let sorted = self.sorted(keyed, false, &|a, b| Ok(self.compare(&a.0, &b.0, "<")?.is_lt()))?;
        let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
        for (key, item) in sorted {
            match groups.last_mut() {
                Some((known, items)) if self.equal(known, &key)? => items.push(item),
                _ => groups.push((key, vec![item])),
            }
        }
        let mut found = Vec::new();
        for (key, items) in groups {
            let key = if is_true(&is_exact) { key } else { self.get(&getter, &items[0])? };
            let items = Value::List(List::new(items)?);
            let depth = super::value::deeper([&key, &items].into_iter())?;
            found.push(Value::Tuple(Rc::new(List { items: vec![key, items], depth, is_group: true })));
        }
        Ok(Value::List(List::new(found)?))
    }
}

fn is_true(value: &Option<Value>) -> bool {
    value.as_ref().is_some_and(Value::is_true)
}
