//! The parser of Jinja's statements, without tags that refer to other templates.

use std::sync::Arc;

use super::ast::{Body, Expr, For, Literal, Macro, Name, Statement, Suffix, Target};
use super::lexer::{tokens, Kind, Token};
use super::{fault, filters, names, Result};

/// Nesting of brackets and tags.
const MOST_DEPTH: usize = 100;
/// Resolving names takes time quadratic in this.
const MOST_TOKENS: usize = 25_000;

pub fn parse(source: &str) -> Result<Body> {
    let tokens = tokens(source)?;
    if tokens.len() > MOST_TOKENS {
        return fault(format!("it has more than {MOST_TOKENS} tokens"));
    }
    let mut parser = Parser { tokens, at: 0, depth: 0, loops: 0, is_conditional: false, unknown: Vec::new() };
    let mut body = Body { statements: parser.statements(&[])?, hidden: Vec::new() };
    if let Some(unknown) = parser.unknown.pop() {
        return fault(unknown);
    }
    names::hide(&mut body);
    Ok(body)
}

pub struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    loops: usize, // number of enclosing loops, for `break`
    is_conditional: bool,
    pub unknown: Vec<String>, // error messages for unknown filters and tests outside of conditions
}

impl Parser {
    pub fn kind(&self) -> &Kind {
        &self.tokens[self.at].kind
    }

    pub fn next_kind(&self) -> &Kind {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].kind
    }

    pub fn advance(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    pub fn wrong<T>(&self, what: impl std::fmt::Display) -> Result<T> {
        fault(format!("{what} (line {})", self.tokens[self.at].line))
    }

    pub fn unexpected<T>(&self) -> Result<T> {
        match self.kind() {
            Kind::End => self.wrong("it ends in the middle of a tag"),
            Kind::Name(name) => self.wrong(format!("unexpected '{name}'")),
            Kind::Operator(operator) => self.wrong(format!("unexpected '{operator}'")),
            _ => self.wrong("an expression is expected"),
        }
    }

    pub fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return self.wrong(format!("it is nested deeper than {MOST_DEPTH}"));
        }
        let result = inner(self);
        self.depth -= 1;
        result
    }

    pub fn is_operator(&self, operator: &str) -> bool {
        matches!(self.kind(), Kind::Operator(found) if *found == operator)
    }

    pub fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        if found {
            self.advance();
        }
        found
    }

    pub fn expect_operator(&mut self, operator: &str) -> Result<()> {
        if self.skip_operator(operator) {
            Ok(())
        } else {
            self.unexpected()
        }
    }

    pub fn is_word(&self, word: &str) -> bool {
        matches!(self.kind(), Kind::Name(found) if **found == *word)
    }

    pub fn skip_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.advance();
        }
        found
    }

    pub fn expect_name(&mut self) -> Result<Name> {
        match self.kind() {
            Kind::Name(name) => {
                let name = name.clone();
                self.advance();
                Ok(name)
            }
            _ => self.unexpected(),
        }
    }

    fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.skip_word(word) {
            Ok(())
        } else {
            self.unexpected()
        }
    }

    fn expect_tag_end(&mut self) -> Result<()> {
        match self.kind() {
            Kind::TagEnd => {
                self.advance();
                Ok(())
            }
            _ => self.unexpected(),
        }
    }

    /// Statements up to one of the tags, whose name is the next token; without tags, up to the end of the template.
    fn statements(&mut self, ends: &[&str]) -> Result<Vec<Statement>> {
        self.deeper(|parser| {
            let mut found = Vec::new();
            loop {
                match parser.kind().clone() {
                    Kind::Data(text) => {
                        parser.advance();
                        found.push(Statement::Text(text));
                    }
                    Kind::PrintBegin => {
                        parser.advance();
                        found.push(Statement::Print(parser.tuple(true, |_| false)?));
                        match parser.kind() {
                            Kind::PrintEnd => parser.advance(),
                            _ => return parser.unexpected(),
                        }
                    }
                    Kind::TagBegin => {
                        parser.advance();
                        if ends.iter().any(|end| parser.is_word(end)) {
                            return Ok(found);
                        }
                        parser.statement(&mut found)?;
                        parser.expect_tag_end()?;
                    }
                    Kind::End if ends.is_empty() => return Ok(found),
                    Kind::End => return parser.wrong(format!("it ends without {}", ends[ends.len() - 1])),
                    _ => return parser.unexpected(),
                }
            }
        })
    }

    fn block(&mut self, ends: &[&str]) -> Result<Vec<Statement>> {
        self.skip_operator(":");
        self.expect_tag_end()?;
        self.statements(ends)
    }

    /// The statements up to a tag as a scope; also reads the tag's name.
    fn body(&mut self, end: &str) -> Result<Body> {
        let was_conditional = std::mem::replace(&mut self.is_conditional, false);
        let statements = self.block(&[end])?;
        self.is_conditional = was_conditional;
        self.advance();
        Ok(Body { statements, hidden: Vec::new() })
    }

    fn statement(&mut self, found: &mut Vec<Statement>) -> Result<()> {
        let tag = self.expect_name()?;
        let statement = match &*tag {
            "if" => self.if_statement()?,
            "for" => self.for_statement()?,
            "set" => self.set()?,
            "macro" => {
                let name = self.expect_name()?;
                Statement::Macro(Arc::new(self.macro_of(name, true, "endmacro")?))
            }
            "call" => {
                let signature = self.is_operator("(");
                let (parameters, defaults) = if signature { self.signature()? } else { Default::default() };
                let call = self.expression()?;
                if !matches!(&call, Expr::Suffixes(_, suffixes) if matches!(suffixes.last(), Some(Suffix::Call(_)))) {
                    return self.wrong("a call is expected");
                }
                let caller = self.macro_body("caller".into(), parameters, defaults, "endcall")?;
                Statement::Call(call, Arc::new(caller))
            }
            "filter" => {
                let filters = self.filters(true)?;
                Statement::Filter(filters, self.body("endfilter")?)
            }
            "with" => {
                let mut values = Vec::new();
                while !matches!(self.kind(), Kind::TagEnd) {
                    if !values.is_empty() {
                        self.expect_operator(",")?;
                    }
                    let target = self.target(false, |_| false)?;
                    self.expect_operator("=")?;
                    values.push((target, self.expression()?));
                }
                Statement::With(values, self.body("endwith")?)
            }
            "generation" => {
                let loops = std::mem::replace(&mut self.loops, 0);
                let body = self.body("endgeneration")?;
                self.loops = loops;
                Statement::Generation(body)
            }
            "print" => {
                let mut is_first = true;
                while !matches!(self.kind(), Kind::TagEnd) {
                    if !is_first {
                        self.expect_operator(",")?;
                    }
                    found.push(Statement::Print(self.expression()?));
                    is_first = false;
                }
                return Ok(());
            }
            "break" | "continue" if self.loops == 0 => return self.wrong(format!("'{tag}' is outside of a loop")),
            "break" => Statement::Break,
            "continue" => Statement::Continue,
            _ => return self.wrong(format!("there is no tag '{tag}' in a chat template")),
        };
        found.push(statement);
        Ok(())
    }

    fn if_statement(&mut self) -> Result<Statement> {
        let was_conditional = std::mem::replace(&mut self.is_conditional, true);
        let (mut branches, mut otherwise) = (Vec::new(), Vec::new());
        loop {
            let test = self.tuple(false, |_| false)?;
            branches.push((test, self.block(&["elif", "else", "endif"])?));
            if self.skip_word("elif") {
                continue;
            }
            if self.skip_word("else") {
                otherwise = self.block(&["endif"])?;
            }
            self.expect_word("endif")?;
            self.is_conditional = was_conditional;
            return Ok(Statement::If(branches, otherwise));
        }
    }

    fn for_statement(&mut self) -> Result<Statement> {
        self.loops += 1;
        let target = self.target(false, |parser| parser.is_word("in"))?;
        self.loops -= 1;
        self.expect_word("in")?;
        let iterable = self.tuple(false, |parser| parser.is_word("recursive"))?;
        let test = if self.skip_word("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_word("recursive");
        let was_conditional = std::mem::replace(&mut self.is_conditional, false);
        self.loops += 1;
        let body = Body { statements: self.block(&["else", "endfor"])?, hidden: Vec::new() };
        self.loops -= 1;
        let mut otherwise = Body::default();
        if self.skip_word("else") {
            otherwise.statements = self.block(&["endfor"])?;
        }
        self.expect_word("endfor")?;
        self.is_conditional = was_conditional;
        Ok(Statement::For(Arc::new(For { target, iterable, test, recursive, body, otherwise })))
    }

    fn set(&mut self) -> Result<Statement> {
        let target = self.target(true, |_| false)?;
        if self.skip_operator("=") {
            return Ok(Statement::Set(target, self.tuple(true, |_| false)?));
        }
        let filters = self.filters(false)?;
        Ok(Statement::SetBlock(target, filters, self.body("endset")?))
    }

    fn signature(&mut self) -> Result<(Vec<Name>, Vec<Expr>)> {
        let (mut parameters, mut defaults) = (Vec::new(), Vec::new());
        self.expect_operator("(")?;
        while !self.is_operator(")") {
            if !parameters.is_empty() {
                self.expect_operator(",")?;
            }
            let name = self.expect_name()?;
            if matches!(&*name, "caller" | "varargs" | "kwargs") || parameters.contains(&name) {
                return self.wrong(format!("a parameter cannot be named '{name}' here"));
            }
            if self.skip_operator("=") {
                defaults.push(self.expression()?);
            } else if !defaults.is_empty() {
                return self.wrong("a parameter without a default follows one with a default");
            }
            parameters.push(name);
        }
        self.advance();
        Ok((parameters, defaults))
    }

    fn macro_of(&mut self, name: Name, signature: bool, end: &str) -> Result<Macro> {
        let (parameters, defaults) = if signature { self.signature()? } else { Default::default() };
        self.macro_body(name, parameters, defaults, end)
    }

    fn macro_body(&mut self, name: Name, parameters: Vec<Name>, defaults: Vec<Expr>, end: &str) -> Result<Macro> {
        let loops = std::mem::replace(&mut self.loops, 0);
        let body = self.body(end)?;
        self.loops = loops;
        let [caller, varargs, kwargs] = ["caller", "varargs", "kwargs"].map(|name| names::is_used(name, &body));
        Ok(Macro { name, parameters, defaults, body, caller, varargs, kwargs })
    }

    /// The target of an assignment; with fields, also a field of a namespace.
    fn target(&mut self, with_fields: bool, is_end: impl Fn(&Self) -> bool) -> Result<Target> {
        let (mut found, mut is_tuple) = (Vec::new(), false);
        loop {
            if matches!(self.kind(), Kind::TagEnd) || is_end(self) || self.is_operator(")") {
                break;
            }
            found.push(self.single_target(with_fields)?);
            if !self.skip_operator(",") {
                break;
            }
            is_tuple = true;
        }
        match found.len() {
            0 => self.unexpected(),
            1 if !is_tuple => Ok(found.remove(0)),
            _ => Ok(Target::Tuple(found)),
        }
    }

    fn single_target(&mut self, with_fields: bool) -> Result<Target> {
        if self.skip_operator("(") {
            let target = self.deeper(|parser| parser.target(with_fields, |_| false))?;
            self.expect_operator(")")?;
            return Ok(target);
        }
        let name = self.expect_name()?;
        if is_constant(&name) || (&*name == "loop" && self.loops > 0) {
            return self.wrong(format!("'{name}' cannot be set"));
        }
        if with_fields && self.skip_operator(".") {
            return Ok(Target::Field(name, self.expect_name()?));
        }
        Ok(Target::Name(name))
    }

    /// The filters of a block: `name(arguments) | ...`, or with a `|` before each.
    fn filters(&mut self, is_inline: bool) -> Result<Vec<Suffix>> {
        let (mut found, mut is_inline) = (Vec::new(), is_inline);
        while is_inline || self.skip_operator("|") {
            is_inline = false;
            found.push(self.filter()?);
        }
        Ok(found)
    }

    pub fn filter(&mut self) -> Result<Suffix> {
        let name = self.known_name("filter", &filters::NAMES)?;
        let arguments = if self.is_operator("(") { self.arguments()? } else { Default::default() };
        Ok(Suffix::Filter(name, arguments))
    }

    pub fn known_name(&mut self, kind: &str, known: &[&str]) -> Result<Name> {
        let name = self.dotted_name()?;
        if !known.contains(&&*name) && !self.is_conditional {
            self.unknown.push(format!("there is no {kind} '{name}' in a chat template"));
        }
        Ok(name)
    }

    fn dotted_name(&mut self) -> Result<Name> {
        let mut name = self.expect_name()?;
        while self.skip_operator(".") {
            name = format!("{name}.{}", self.expect_name()?).into();
        }
        Ok(name)
    }
}

pub fn is_constant(name: &str) -> bool {
    constant(name).is_some()
}

pub fn constant(name: &str) -> Option<Literal> {
    match name {
        "true" | "True" => Some(Literal::Bool(true)),
        "false" | "False" => Some(Literal::Bool(false)),
        "none" | "None" => Some(Literal::None),
        _ => None,
    }
}

pub fn names_of(target: &Target) -> Vec<&Name> {
    match target {
        Target::Name(name) => vec![name],
        Target::Tuple(targets) => targets.iter().flat_map(names_of).collect(),
        Target::Field(..) => Vec::new(),
    }
}
