"""What every contender carries: about 116 bytes of JSON."""

PAYLOAD = (
    '{"user":4711,"action":"resize","image":"s3://bucket/originals/0001.jpg",'
    '"sizes":[128,512,1024],"notify":true,"n":1}'
)
BODY = (  # the same size, as the dispatcher door takes it
    '{"model":"small","messages":[{"role":"user","content":'
    '"Say in one short sentence why the sky is blue, please."}]}'
)
