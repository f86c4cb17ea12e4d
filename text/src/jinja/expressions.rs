//! The parser of Jinja's expressions, in the order of precedence.

use super::ast::{Arguments, Comparison, Expr, Literal, Operator, Suffix};
use super::lexer::Kind;
use super::parser::{constant, Parser};
use super::{tests, Result};

impl Parser {
    /// Expressions separated by commas are a tuple.
    pub fn tuple(&mut self, with_condition: bool, is_end: impl Fn(&Self) -> bool) -> Result<Expr> {
        let (mut found, mut is_tuple) = (Vec::new(), false);
        loop {
            if matches!(self.kind(), Kind::PrintEnd | Kind::TagEnd) || self.is_operator(")") || is_end(self) {
                break;
            }
            found.push(if with_condition { self.expression()? } else { self.or()? });
            if !self.skip_operator(",") {
                break;
            }
            is_tuple = true;
        }
        match found.len() {
            0 => self.unexpected(),
            1 if !is_tuple => Ok(found.remove(0)),
            _ => Ok(Expr::Tuple(found)),
        }
    }

    pub fn expression(&mut self) -> Result<Expr> {
        self.deeper(|parser| {
            let known = parser.unknown.len();
            let value = parser.or()?;
            if !parser.skip_word("if") {
                return Ok(value);
            }
            let test = parser.or()?;
            let otherwise = if parser.skip_word("else") { Some(Box::new(parser.expression()?)) } else { None };
            if parser.is_word("if") {
                return parser.unexpected(); // Jinja would nest conditions without limit here
            }
            parser.unknown.truncate(known); // an unknown filter here is only an error if it runs
            Ok(Expr::If(Box::new([test, value]), otherwise))
        })
    }

    fn or(&mut self) -> Result<Expr> {
        let mut found = vec![self.and()?];
        while self.skip_word("or") {
            found.push(self.and()?);
        }
        Ok(if found.len() == 1 { found.remove(0) } else { Expr::Or(found) })
    }

    fn and(&mut self) -> Result<Expr> {
        let mut found = vec![self.not()?];
        while self.skip_word("and") {
            found.push(self.not()?);
        }
        Ok(if found.len() == 1 { found.remove(0) } else { Expr::And(found) })
    }

    fn not(&mut self) -> Result<Expr> {
        if self.skip_word("not") {
            return Ok(Expr::Not(Box::new(self.deeper(Parser::not)?)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.kind() {
                Kind::Operator("==") => Comparison::Equal,
                Kind::Operator("!=") => Comparison::NotEqual,
                Kind::Operator("<") => Comparison::Less,
                Kind::Operator("<=") => Comparison::LessEqual,
                Kind::Operator(">") => Comparison::Greater,
                Kind::Operator(">=") => Comparison::GreaterEqual,
                Kind::Name(name) if &**name == "in" => Comparison::In,
                Kind::Name(name)
                    if &**name == "not" && matches!(self.next_kind(), Kind::Name(name) if &**name == "in") =>
                {
                    self.advance();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.advance();
            rest.push((comparison, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn operators(&mut self, ranked: &[(&str, Operator)], operand: impl Fn(&mut Self) -> Result<Expr>) -> Result<Expr> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some(&(sign, operator)) = ranked.iter().find(|(sign, _)| self.is_operator(sign)) {
            self.expect_operator(sign)?;
            rest.push((operator, operand(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Operators(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Result<Expr> {
        self.operators(&[("+", Operator::Add), ("-", Operator::Subtract)], Parser::concat)
    }

    fn concat(&mut self) -> Result<Expr> {
        let mut found = vec![self.product()?];
        while self.skip_operator("~") {
            found.push(self.product()?);
        }
        Ok(if found.len() == 1 { found.remove(0) } else { Expr::Concat(found) })
    }

    fn product(&mut self) -> Result<Expr> {
        let ranked = [
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Remainder),
        ];
        self.operators(&ranked, Parser::power)
    }

    fn power(&mut self) -> Result<Expr> {
        self.operators(&[("**", Operator::Power)], |parser| parser.unary(true))
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expr> {
        let base = if self.skip_operator("-") {
            Expr::Negative(Box::new(self.deeper(|parser| parser.unary(false))?))
        } else if self.skip_operator("+") {
            Expr::Positive(Box::new(self.deeper(|parser| parser.unary(false))?))
        } else {
            self.primary()?
        };
        let mut suffixes = Vec::new();
        self.postfix(&mut suffixes)?;
        if !with_filters {
            return Ok(with_suffixes(base, suffixes));
        }
        loop {
            if self.skip_operator("|") {
                suffixes.push(self.filter()?);
            } else if self.skip_word("is") {
                suffixes.push(self.test()?);
            } else if self.is_operator("(") {
                suffixes.push(Suffix::Call(self.arguments()?));
            } else {
                break;
            }
        }
        Ok(with_suffixes(base, suffixes))
    }

    fn primary(&mut self) -> Result<Expr> {
        let expr = match self.kind().clone() {
            Kind::Name(name) if matches!(&*name, "self" | "lipsum") => {
                return self.wrong(format!("'{name}' is not for chat templates"));
            }
            Kind::Name(name) => constant(&name).map_or_else(|| Expr::Name(name), Expr::Literal),
            Kind::Literal(Literal::Text(first)) => {
                let mut text = first.to_string();
                while let Kind::Literal(Literal::Text(more)) = self.next_kind().clone() {
                    text += &more;
                    self.advance();
                }
                Expr::Literal(Literal::Text(text.into()))
            }
            Kind::Literal(literal) => Expr::Literal(literal),
            Kind::Operator("(") => {
                self.advance();
                if self.skip_operator(")") {
                    return Ok(Expr::Tuple(Vec::new()));
                }
                let inner = self.tuple(true, |_| false)?;
                self.expect_operator(")")?;
                return Ok(inner);
            }
            Kind::Operator("[") => {
                self.advance();
                return Ok(Expr::List(self.items("]", Parser::expression)?));
            }
            Kind::Operator("{") => {
                self.advance();
                return Ok(Expr::Dict(self.items("}", |parser| {
                    let name = parser.expression()?;
                    parser.expect_operator(":")?;
                    Ok((name, parser.expression()?))
                })?));
            }
            _ => return self.unexpected(),
        };
        self.advance();
        Ok(expr)
    }

    fn items<T>(&mut self, end: &str, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut found = Vec::new();
        while !self.skip_operator(end) {
            if !found.is_empty() {
                self.expect_operator(",")?;
                if self.skip_operator(end) {
                    break;
                }
            }
            found.push(item(self)?);
        }
        Ok(found)
    }

    fn postfix(&mut self, suffixes: &mut Vec<Suffix>) -> Result<()> {
        loop {
            if self.skip_operator(".") {
                suffixes.push(match self.kind().clone() {
                    Kind::Name(name) => Suffix::Attribute(name),
                    Kind::Literal(Literal::Int(index)) => Suffix::Item(Expr::Literal(Literal::Int(index))),
                    _ => return self.unexpected(),
                });
                self.advance();
            } else if self.skip_operator("[") {
                suffixes.push(self.subscript()?);
                self.expect_operator("]")?;
            } else if self.is_operator("(") {
                suffixes.push(Suffix::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    fn subscript(&mut self) -> Result<Suffix> {
        let part = |parser: &mut Parser| {
            let is_empty = parser.is_operator(":") || parser.is_operator("]");
            if is_empty {
                Ok(None)
            } else {
                parser.expression().map(Some)
            }
        };
        let first = part(self)?;
        if self.skip_operator(":") {
            let last = part(self)?;
            let step = if self.skip_operator(":") { part(self)? } else { None };
            return Ok(Suffix::Slice(Box::new([first, last, step])));
        }
        let Some(first) = first else { return self.unexpected() };
        if !self.is_operator(",") {
            return Ok(Suffix::Item(first));
        }
        let mut items = vec![first];
        while self.skip_operator(",") {
            items.push(self.expression()?);
        }
        Ok(Suffix::Item(Expr::Tuple(items)))
    }

    fn test(&mut self) -> Result<Suffix> {
        let negated = self.skip_word("not");
        let name = self.known_name("test", &tests::NAMES)?;
        let mut arguments = Arguments::default();
        let takes_one = match self.kind() {
            Kind::Name(name) => !matches!(&**name, "else" | "or" | "and"),
            Kind::Literal(_) | Kind::Operator("[" | "{") => true,
            _ => false,
        };
        if self.is_operator("(") {
            arguments = self.arguments()?;
        } else if takes_one {
            if self.is_word("is") {
                return self.wrong("tests cannot be chained with 'is'");
            }
            let base = self.deeper(Parser::primary)?;
            let mut suffixes = Vec::new();
            self.postfix(&mut suffixes)?;
            let is_plain = suffixes.is_empty();
            arguments.positional.push(if is_plain { base } else { Expr::Suffixes(Box::new(base), suffixes) });
        }
        Ok(Suffix::Test { name, arguments, negated })
    }

    pub fn arguments(&mut self) -> Result<Arguments> {
        self.expect_operator("(")?;
        let (mut found, mut is_first) = (Arguments::default(), true);
        while !self.skip_operator(")") {
            if !is_first {
                self.expect_operator(",")?;
                if self.skip_operator(")") {
                    break;
                }
            }
            is_first = false;
            let is_named = matches!((self.kind(), self.next_kind()), (Kind::Name(_), Kind::Operator("=")));
            let has_rest = found.rest.is_some() || found.named_rest.is_some();
            if self.is_operator("*") && !has_rest {
                self.advance();
                found.rest = Some(Box::new(self.expression()?));
            } else if self.is_operator("**") && found.named_rest.is_none() {
                self.advance();
                found.named_rest = Some(Box::new(self.expression()?));
            } else if is_named && found.named_rest.is_none() {
                let name = self.expect_name()?;
                self.advance();
                if found.named.iter().any(|(other, _)| *other == name) {
                    return self.wrong(format!("the argument '{name}' is given twice"));
                }
                found.named.push((name, self.expression()?));
            } else if !has_rest && found.named.is_empty() {
                found.positional.push(self.expression()?);
            } else {
                return self.wrong("arguments in an order that no call has");
            }
        }
        Ok(found)
    }
}

fn with_suffixes(base: Expr, suffixes: Vec<Suffix>) -> Expr {
    if suffixes.is_empty() {
        base
    } else {
        Expr::Suffixes(Box::new(base), suffixes)
    }
}
