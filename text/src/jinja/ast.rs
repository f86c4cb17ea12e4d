//! The syntax tree of a chat template. Chains of operators are flat, so the depth is that of brackets and tags.

use std::sync::Arc;

pub type Name = Arc<str>;

#[derive(Clone)]
pub enum Literal {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Name),
}

#[derive(Clone, Copy, PartialEq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

pub enum Expr {
    Literal(Literal),
    Name(Name),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    If(Box<[Expr; 2]>, Option<Box<Expr>>), // test, value; otherwise
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    Operators(Box<Expr>, Vec<(Operator, Expr)>), // of the same precedence, from left to right
    Concat(Vec<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    Suffixes(Box<Expr>, Vec<Suffix>),
}

pub enum Suffix {
    Attribute(Name),
    Item(Expr),
    Slice(Box<[Option<Expr>; 3]>),
    Call(Arguments),
    Filter(Name, Arguments),
    Test { name: Name, arguments: Arguments, negated: bool },
}

#[derive(Default)]
pub struct Arguments {
    pub positional: Vec<Expr>,
    pub named: Vec<(Name, Expr)>,
    pub rest: Option<Box<Expr>>,       // *rest
    pub named_rest: Option<Box<Expr>>, // **named_rest
}

pub enum Target {
    Name(Name),
    Tuple(Vec<Target>),
    Field(Name, Name), // of a namespace
}

/// The statements of a scope, and the names that shadow outer ones from its beginning (names.rs).
#[derive(Default)]
pub struct Body {
    pub statements: Vec<Statement>,
    pub hidden: Vec<Name>,
}

pub enum Statement {
    Text(Name),
    Print(Expr),
    If(Vec<(Expr, Vec<Statement>)>, Vec<Statement>),
    For(Arc<For>),
    Set(Target, Expr),
    SetBlock(Target, Vec<Suffix>, Body),
    With(Vec<(Target, Expr)>, Body),
    Filter(Vec<Suffix>, Body),
    Macro(Arc<Macro>),
    Call(Expr, Arc<Macro>), // the call is the last suffix
    Generation(Body),
    Break,
    Continue,
}

pub struct For {
    pub target: Target,
    pub iterable: Expr,
    pub test: Option<Expr>,
    pub recursive: bool,
    pub body: Body,
    pub otherwise: Body,
}

pub struct Macro {
    pub name: Name,
    pub parameters: Vec<Name>,
    pub defaults: Vec<Expr>, // for the last parameters
    pub body: Body,
    pub caller: bool, // whether the body uses `caller`
    pub varargs: bool,
    pub kwargs: bool,
}
