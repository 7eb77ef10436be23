"""A broker as a service of a Twisted application: twistd -n --pidfile= -y broker.tac"""

from twisted.application.service import Application
from twisted.internet import reactor

from twisted_broker import Broker

application = Application("with a broker")
# A broker that cannot start, or go on, ends this application.
broker = Broker(data="broker-data", port=9092, on_failure=lambda reason: reactor.stop())
broker.setServiceParent(application)
