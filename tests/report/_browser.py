"""Words of the browser tests, which the tests of the command look for."""

LEFT_OUT = "MARBLE_NO_BROWSER=1: the report page was NOT opened in a browser"
