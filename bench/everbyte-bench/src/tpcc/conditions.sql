-- 1: a warehouse's takings are those of its districts
SELECT count(*) FROM warehouse
WHERE w_ytd IS NOT (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id);
-- 2: a district's next order follows its last one, and its last new one if there is any
SELECT count(*) FROM district WHERE d_next_o_id - 1 IS NOT
(SELECT max(o_id) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id)
OR d_next_o_id - 1 <>
(SELECT max(no_o_id) FROM new_order WHERE no_w_id = d_w_id AND no_d_id = d_id);
-- 3: the new orders of a district have numbers without a gap
SELECT count(*) FROM (SELECT 1 FROM new_order GROUP BY no_w_id, no_d_id
HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*));
-- 4: a district has as many lines as its orders say
SELECT count(*) FROM district WHERE
(SELECT sum(o_ol_cnt) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id) IS NOT
(SELECT count(*) FROM order_line WHERE ol_w_id = d_w_id AND ol_d_id = d_id);
-- 5: an order has no carrier as long as it is new
SELECT count(*) FROM orders LEFT JOIN new_order
ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id
WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL);
-- 5: a new order is an order
SELECT count(*) FROM new_order LEFT JOIN orders
ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id WHERE o_id IS NULL;
-- 6: an order has as many lines as it says
SELECT count(*) FROM orders WHERE o_ol_cnt <> (SELECT count(*) FROM order_line
WHERE ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id);
-- 7: a line has no date of delivery as long as its order has no carrier
SELECT count(*) FROM order_line JOIN orders
ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
WHERE (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL);
-- 8: a warehouse's takings are what was paid to it
SELECT count(*) FROM warehouse LEFT JOIN
(SELECT h_w_id, sum(h_amount) AS paid FROM history GROUP BY h_w_id) ON h_w_id = w_id
WHERE w_ytd IS NOT paid;
-- 9: a district's takings are what was paid to it
SELECT count(*) FROM district LEFT JOIN
(SELECT h_w_id, h_d_id, sum(h_amount) AS paid FROM history GROUP BY h_w_id, h_d_id)
ON h_w_id = d_w_id AND h_d_id = d_id WHERE d_ytd IS NOT paid;
-- 10: a customer owes what was delivered and not paid
WITH delivered AS (SELECT o_w_id AS w, o_d_id AS d, o_c_id AS c, sum(ol_amount) AS amount
FROM orders JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
WHERE ol_delivery_d IS NOT NULL GROUP BY 1, 2, 3),
paid AS (SELECT h_c_w_id AS w, h_c_d_id AS d, h_c_id AS c, sum(h_amount) AS amount
FROM history GROUP BY 1, 2, 3)
SELECT count(*) FROM customer
LEFT JOIN delivered ON delivered.w = c_w_id AND delivered.d = c_d_id AND delivered.c = c_id
LEFT JOIN paid ON paid.w = c_w_id AND paid.d = c_d_id AND paid.c = c_id
WHERE c_balance <> coalesce(delivered.amount, 0) - coalesce(paid.amount, 0);
-- 12: a customer's balance and payments are what was delivered
WITH delivered AS (SELECT o_w_id AS w, o_d_id AS d, o_c_id AS c, sum(ol_amount) AS amount
FROM orders JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
WHERE ol_delivery_d IS NOT NULL GROUP BY 1, 2, 3)
SELECT count(*) FROM customer
LEFT JOIN delivered ON delivered.w = c_w_id AND delivered.d = c_d_id AND delivered.c = c_id
WHERE c_balance + c_ytd_payment <> coalesce(delivered.amount, 0);
