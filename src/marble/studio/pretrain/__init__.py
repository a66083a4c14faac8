"""How the studio's weights were made; `make studio` runs it. Nothing here is needed to train."""
