//! What the examples share: a library of real books as a service.
#![allow(dead_code, reason = "each example uses its own part")]

use std::{collections::HashMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};
use sluicegate::Status;

/// A book. Both ends need this type; it travels as the codec of the call writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Book {
    pub(crate) isbn: String,
    pub(crate) title: String,
    pub(crate) author: String,
    pub(crate) year: u16,
    /// A thumbnail: [`COVER_SIDE`] rows of as many pixels, each a shade from 0 to 3.
    ///
    /// Without the attribute serde writes a `Vec<u8>` element by element, which costs more than all
    /// the rest of a call.
    #[serde(with = "sluicegate::bytes")]
    pub(crate) cover: Vec<u8>,
}

impl fmt::Display for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {} ({})", self.title, self.author, self.year)
    }
}

/// The service. The macro makes a `LibraryServer` and a `LibraryClient` of it.
#[sluicegate::service]
pub(crate) trait Library {
    /// The book that has this ISBN, or "not found".
    async fn get_book(&self, isbn: String) -> Result<Book, Status>;

    /// The first books with `text` in title or author, in any case of letters.
    async fn search(&self, text: String) -> Result<Vec<Book>, Status>;
}

/// The library that the examples serve.
#[derive(Debug)]
pub(crate) struct Shelf {
    books: Vec<Book>,
    by_isbn: HashMap<String, usize>,
    delay: Option<Duration>,
}

// An implementation is plain `async fn`, and shared by all calls: what changes needs a lock or an
// atomic, as everywhere.
impl Library for Shelf {
    async fn get_book(&self, isbn: String) -> Result<Book, Status> {
        self.pause().await;
        match self.by_isbn.get(&isbn) {
            Some(&at) => Ok(self.books[at].clone()),
            None if isbn13(&isbn).is_none() => Err(Status::invalid_argument(format!("{isbn:?} is not an ISBN-13"))),
            None => Err(Status::not_found(format!("no book has the ISBN {isbn}"))),
        }
    }

    async fn search(&self, text: String) -> Result<Vec<Book>, Status> {
        self.pause().await;
        if text.trim().is_empty() {
            return Err(Status::invalid_argument("there is nothing to search for"));
        }
        Ok(self.matching(&text).take(MAX_FOUND).cloned().collect())
    }
}

impl Shelf {
    /// The books of the data file.
    pub(crate) fn load() -> Result<Self, BadBook> {
        let rows = include_str!("../data/books.tsv").lines().enumerate().skip(1);
        let parse = |(at, row)| parse_book(row).map_err(|what| BadBook { line: at + 1, what });
        let books = rows.map(parse).collect::<Result<Vec<_>, _>>()?;
        let by_isbn = books.iter().enumerate().map(|(at, book)| (book.isbn.clone(), at)).collect();
        Ok(Self { books, by_isbn, delay: None })
    }

    /// Lets every call take at least `delay`, as a database would.
    pub(crate) fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay).filter(|delay| !delay.is_zero());
        self
    }

    /// The ISBNs it has.
    pub(crate) fn isbns(&self) -> impl Iterator<Item = &str> {
        self.books.iter().map(|book| &*book.isbn)
    }

    /// The books with `text` in title or author, in any case of letters.
    pub(crate) fn matching(&self, text: &str) -> impl Iterator<Item = &Book> {
        let text = text.to_lowercase();
        self.books.iter().filter(move |book| {
            let has_text = |field: &str| field.to_lowercase().contains(&text);
            has_text(&book.title) || has_text(&book.author)
        })
    }

    /// The number of books.
    pub(crate) fn len(&self) -> usize {
        self.books.len()
    }

    async fn pause(&self) {
        if let Some(delay) = self.delay {
            tokio::time::sleep(delay).await;
        }
    }
}

/// A line of the data file is wrong.
#[derive(Debug)]
pub(crate) struct BadBook {
    line: usize,
    what: &'static str,
}

impl fmt::Display for BadBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "books.tsv, line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for BadBook {}

fn parse_book(row: &str) -> Result<Book, &'static str> {
    let mut fields = row.split('\t');
    let (Some(isbn), Some(title), Some(author), Some(year), None) =
        (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err("not four fields");
    };
    let digits = isbn13(isbn).ok_or("not an ISBN-13")?;
    Ok(Book {
        isbn: isbn.to_owned(),
        title: title.to_owned(),
        author: author.to_owned(),
        year: year.parse().map_err(|_| "the year is not a number")?,
        cover: draw_cover(digits),
    })
}

/// The number of an ISBN, if it is one: 13 digits that, weighted 1 and 3 in turn, add up to a
/// multiple of ten.
fn isbn13(text: &str) -> Option<u64> {
    let is_digits = text.len() == 13 && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_digits.then(|| text.parse().ok())??;
    let weighted = text.bytes().zip([1, 3].into_iter().cycle()).map(|(digit, weight)| u32::from(digit - b'0') * weight);
    (weighted.sum::<u32>() % 10 == 0).then_some(number)
}

/// A picture as good as any for a book without one: drawn from its ISBN, left and right alike.
fn draw_cover(isbn: u64) -> Vec<u8> {
    let mixed = isbn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let shade = |row: usize, column: usize| {
        let column = column.min(COVER_SIDE - 1 - column);
        (mixed >> (2 * (row * COVER_SIDE / 2 + column)) & 3) as u8
    };
    (0..COVER_SIDE * COVER_SIDE).map(|at| shade(at / COVER_SIDE, at % COVER_SIDE)).collect()
}

/// Pixels of a cover in each direction.
pub(crate) const COVER_SIDE: usize = 8;
/// A search gives no more books than this. An answer has to have a bound, as a question has.
const MAX_FOUND: usize = 20;
