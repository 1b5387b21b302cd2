"""What the tests' HTTP clients verify servers with: they speak plain HTTP to this machine only.

Reading the certificates of a client that knows authorities takes 30 ms, longer than most tests.
"""

import ssl

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # knows no authority: trusts nobody
