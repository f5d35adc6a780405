"""Fillings of chapters' blanks that readers might write, and what each is told.

A module for each chapter (`ch04`) with one table, `FILLINGS`: by the blank's cell id, then by a
name that says what the filling does. Each is a change of the solution, as in a lab:

    FILLINGS = {
        "ten-lines": {
            "takes_no_grad": wrong("is `grad` used?", "backward(grad)", "backward(y)"),
            "calls_forward": right("ctx.function(*tensors)", "ctx.function.__call__(*tensors)"),
        },
    }

The words are a part of the message that the cell `check-ten-lines`, right below the blank, must
give. At least three wrong fillings a blank are needed. `test_blanks` adds three of its own to each:
a body that raises, that returns None, and that returns a text.
"""
