//! The five transactions (clauses 2.4 to 2.8).
//!
//! Invariant: each reads and writes what its clause says, the columns that a terminal would show
//! included, and ends committed or rolled back. The deliveries of a warehouse's ten districts are
//! one transaction, which clause 2.7.1.3 allows.

use std::hint::black_box;

use rusqlite::types::FromSql;
use rusqlite::{Connection, Result, Row, Statement, params};

use super::rng::{TpccRng, last_name};
use super::statements::Statements;
use super::{DISTRICTS, Scale};

/// Result of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    /// An order of so many lines was taken.
    NewOrder { warehouse: u32, district: u32, order: i64, lines: u32 },
    /// A new order was rolled back, because an item does not exist (clause 2.4.1.4).
    RolledBack,
    /// A customer paid; `history` is the row's number.
    Payment { history: i64, amount: u32 },
    /// A customer asked for the last order.
    OrderStatus,
    /// The oldest order of each district that had one was delivered: district and order.
    Delivery { warehouse: u32, orders: Vec<(u32, i64)> },
    /// Items of recent orders that run low were counted.
    StockLevel,
}

/// The kinds, in the order in which outcomes count them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

/// The only user of a connection.
pub(super) struct Terminal<'c> {
    db: &'c Connection,
    statements: Statements<'c>,
    pub(super) rng: TpccRng,
    scale: Scale,
    /// The date.
    now: i64,
    /// Lines of the order in hand.
    lines: Vec<Line>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    number: u32,
    item: u32,
    supplier: u32,
    quantity: u32,
}

/// Place and number of an order.
#[derive(Clone, Copy, Debug)]
struct Order {
    warehouse: u32,
    district: u32,
    number: i64,
}

impl<'c> Terminal<'c> {
    pub(super) fn new(db: &'c Connection, scale: Scale, rng: TpccRng) -> Result<Self> {
        let statements = Statements::prepare(db)?;
        Ok(Self { db, statements, rng, scale, now: 0, lines: Vec::new() })
    }

    /// Does everything of a transaction but end it.
    pub(super) fn work(&mut self, kind: Kind) -> Result<Done> {
        self.now += 1;
        let warehouse = self.rng.uniform(1, self.scale.warehouses);
        let begin = match kind {
            Kind::NewOrder | Kind::Payment | Kind::Delivery => &mut self.statements.begin_immediate,
            Kind::OrderStatus | Kind::StockLevel => &mut self.statements.begin,
        };
        begin.execute([])?;
        match kind {
            Kind::NewOrder => self.new_order(warehouse),
            Kind::Payment => self.payment(warehouse),
            Kind::OrderStatus => self.order_status(warehouse),
            Kind::Delivery => self.delivery(warehouse),
            Kind::StockLevel => self.stock_level(warehouse),
        }
    }

    /// Ends a transaction as `done` says.
    pub(super) fn end(&mut self, done: &Done) -> Result<()> {
        let end = match done {
            Done::RolledBack => &mut self.statements.roll_back,
            _ => &mut self.statements.commit,
        };
        end.execute([]).map(drop)
    }

    /// Undoes a transaction that failed, as far as SQLite has not done so.
    pub(super) fn abandon(&mut self) {
        if !self.db.is_autocommit() {
            // The error that led here is the one that matters.
            let _undone = self.statements.roll_back.execute([]);
        }
    }

    fn new_order(&mut self, warehouse: u32) -> Result<Done> {
        let district = self.rng.uniform(1, DISTRICTS);
        let customer = self.rng.customer(self.scale.customers());
        self.draw_lines(warehouse);
        let lines = u32::try_from(self.lines.len()).unwrap_or(u32::MAX);
        let all_local = self.lines.iter().all(|line| line.supplier == warehouse);
        let statements = &mut self.statements;
        let discount: i64 = statements
            .customer_terms
            .query_row(params![warehouse, district, customer], shown::<i64, 3>)?;
        let tax: i64 = statements.warehouse_tax.query_row([warehouse], |row| row.get(0))?;
        let (number, district_tax): (i64, i64) = statements
            .district_terms
            .query_row([warehouse, district], |row| Ok((row.get(0)?, row.get(1)?)))?;
        statements.take_order_number.execute([warehouse, district])?;
        let order = Order { warehouse, district, number };
        let terms = params![warehouse, district, number, customer, self.now, lines, all_local];
        statements.insert_order.execute(terms)?;
        statements.insert_new_order.execute(params![warehouse, district, number])?;
        let mut total = 0;
        for at in 0..self.lines.len() {
            match self.order_line(order, self.lines[at])? {
                Some(amount) => total += amount,
                None => return Ok(Done::RolledBack),
            }
        }
        black_box(total * (10_000 - discount) / 10_000 * (10_000 + tax + district_tax) / 10_000);
        Ok(Done::NewOrder { warehouse, district, order: number, lines })
    }

    /// Draws an order's lines; the last of one order in a hundred has no such item.
    fn draw_lines(&mut self, warehouse: u32) {
        let rng = &mut self.rng;
        let (items, warehouses) = (self.scale.items(), self.scale.warehouses);
        let count = rng.uniform(5, 15);
        let rolls_back = rng.percent(1);
        self.lines.clear();
        for number in 1..=count {
            let unknown = rolls_back && number == count;
            let item = if unknown { items + 1 } else { rng.item(items) };
            let remote = rng.percent(1);
            let supplier =
                if remote { rng.other_than(warehouse, 1, warehouses) } else { warehouse };
            let quantity = rng.uniform(1, 10);
            self.lines.push(Line { number, item, supplier, quantity });
        }
    }

    /// Takes a line's stock and notes it. Returns its amount, `None` if there is no such item.
    fn order_line(&mut self, order: Order, line: Line) -> Result<Option<i64>> {
        let Line { number: line, item, supplier, quantity } = line;
        let statements = &mut self.statements;
        let price = statements.item.query_row([item], shown::<i64, 3>);
        let price = match price {
            Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(None),
            price => price?,
        };
        let quantity = i64::from(quantity);
        let mut rows = statements.stock.query([supplier, item])?;
        let row = rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        let (stock, left): (i64, i64) = (row.get(0)?, row.get(1)?);
        black_box(row.get_ref(2)?);
        let column = usize::try_from(2 + order.district).unwrap_or(usize::MAX);
        // Twenty-four letters, copied because the next statement ends the row.
        let info: String = row.get(column)?;
        drop(rows);
        let rest = left - quantity;
        let rest = if rest >= 10 { rest } else { rest + 91 };
        let remote = supplier != order.warehouse;
        statements.take_stock.execute(params![stock, rest, quantity, remote])?;
        let amount = price * quantity;
        let Order { warehouse, district, number } = order;
        statements.insert_order_line.execute(params![
            warehouse, district, number, line, item, supplier, quantity, amount, info
        ])?;
        Ok(Some(amount))
    }

    fn payment(&mut self, warehouse: u32) -> Result<Done> {
        let rng = &mut self.rng;
        let district = rng.uniform(1, DISTRICTS);
        let (of_warehouse, of_district) = if rng.percent(85) {
            (warehouse, district)
        } else {
            (rng.other_than(warehouse, 1, self.scale.warehouses), rng.uniform(1, DISTRICTS))
        };
        let amount = rng.uniform(100, 500_000);
        let customer = self.find_customer(of_warehouse, of_district)?;
        let statements = &mut self.statements;
        statements.pay_warehouse.execute([warehouse, amount])?;
        let warehouse_name: String =
            statements.warehouse_address.query_row([warehouse], shown::<_, 6>)?;
        statements.pay_district.execute([warehouse, district, amount])?;
        let district_name: String =
            statements.district_address.query_row([warehouse, district], shown::<_, 6>)?;
        let (id, bad_credit) = statements.payer.query_row([customer], |row| {
            let bad = row.get_ref(1)?.as_str()? == "BC";
            Ok((shown::<i64, 15>(row)?, bad))
        })?;
        if bad_credit {
            let note =
                format!("{id} {of_district} {of_warehouse} {district} {warehouse} {amount}|");
            statements.pay_with_bad_credit.execute(params![customer, amount, note])?;
        } else {
            statements.pay.execute(params![customer, amount])?;
        }
        let note = format!("{warehouse_name}    {district_name}");
        statements.insert_history.execute(params![
            id,
            of_district,
            of_warehouse,
            district,
            warehouse,
            self.now,
            amount,
            note
        ])?;
        Ok(Done::Payment { history: self.db.last_insert_rowid(), amount })
    }

    /// The row of a customer: in six of ten cases by last name (clause 2.5.1.2), where several
    /// have it the middle one by first name.
    fn find_customer(&mut self, warehouse: u32, district: u32) -> Result<i64> {
        let statements = &mut self.statements;
        if !self.rng.percent(60) {
            let customer = self.rng.customer(self.scale.customers());
            let key = [warehouse, district, customer];
            return statements.customer_by_id.query_row(key, |row| row.get(0));
        }
        let name = last_name(self.rng.last_name_of(self.scale.last_names()));
        let of_name = params![warehouse, district, name];
        let rows = statements.customers_by_name.query_map(of_name, |row| row.get(0))?;
        let found: Vec<i64> = rows.collect::<Result<_>>()?;
        let middle = found.len().div_ceil(2).checked_sub(1).and_then(|middle| found.get(middle));
        middle.copied().ok_or(rusqlite::Error::QueryReturnedNoRows)
    }

    fn order_status(&mut self, warehouse: u32) -> Result<Done> {
        let district = self.rng.uniform(1, DISTRICTS);
        let customer = self.find_customer(warehouse, district)?;
        let statements = &mut self.statements;
        let id: i64 = statements.customer_status.query_row([customer], shown::<_, 5>)?;
        let key = params![warehouse, district, id];
        let order: i64 = statements.last_order.query_row(key, shown::<_, 3>)?;
        show_all::<5>(&mut statements.order_lines, params![warehouse, district, order])?;
        Ok(Done::OrderStatus)
    }

    fn delivery(&mut self, warehouse: u32) -> Result<Done> {
        let carrier = self.rng.uniform(1, 10);
        let mut orders = Vec::new();
        for district in 1..=DISTRICTS {
            let statements = &mut self.statements;
            let oldest = statements
                .oldest_new_order
                .query_row([warehouse, district], |row| row.get::<_, i64>(0));
            let order = match oldest {
                Err(rusqlite::Error::QueryReturnedNoRows) => continue,
                order => order?,
            };
            let key = params![warehouse, district, order];
            statements.delete_new_order.execute(key)?;
            let customer: i64 = statements.ordering_customer.query_row(key, |row| row.get(0))?;
            statements.set_carrier.execute(params![warehouse, district, order, carrier])?;
            statements.deliver_lines.execute(params![warehouse, district, order, self.now])?;
            let amount: i64 = statements.amount_of_lines.query_row(key, |row| row.get(0))?;
            let charged = params![warehouse, district, customer, amount];
            statements.charge_customer.execute(charged)?;
            orders.push((district, order));
        }
        Ok(Done::Delivery { warehouse, orders })
    }

    fn stock_level(&mut self, warehouse: u32) -> Result<Done> {
        let (district, threshold) = (self.rng.uniform(1, DISTRICTS), self.rng.uniform(10, 20));
        let statements = &mut self.statements;
        let key = [warehouse, district];
        let next: i64 = statements.next_order_number.query_row(key, |row| row.get(0))?;
        let args = params![warehouse, district, next, threshold];
        black_box(statements.low_stocks.query_row(args, shown::<i64, 1>)?);
        Ok(Done::StockLevel)
    }
}

/// The first of a row's `N` columns; all are fetched, as if they were shown to someone.
fn shown<T: FromSql, const N: usize>(row: &Row<'_>) -> Result<T> {
    for column in 1..N {
        black_box(row.get_ref(column)?);
    }
    row.get(0)
}

/// Fetches `N` columns of every row.
fn show_all<const N: usize>(
    statement: &mut Statement<'_>,
    parameters: &[&dyn rusqlite::ToSql],
) -> Result<()> {
    let mut rows = statement.query(parameters)?;
    while let Some(row) = rows.next()? {
        black_box(shown::<i64, N>(row)?);
    }
    Ok(())
}
