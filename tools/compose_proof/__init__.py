"""`make compose-proof`: docker-compose.yml built, started, used, hurt and taken down for real.

Standard library only, since it also runs where nothing of ours is installed. Read next: `__main__`.
"""
